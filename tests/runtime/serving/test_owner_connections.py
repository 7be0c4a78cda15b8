"""Laws of the connections of a proxy to a state server: an address of clients has its own, and they are not many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from qstate.protocol.messages import Values
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.forwarding.owner_connections import MOST_APART
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import serve
from tests.runtime.serving.raw_client import RawClient, wait_until
from tests.runtime.serving.readers import GatedReader, instance

STATE = ("job", "lastTemperature")


@pytest.fixture
def reader() -> GatedReader:
    return GatedReader({"free": 1, "gated": 2}, ["gated"])


@pytest.fixture
def server(start_server: ServerFactory) -> StateServer:
    return start_server(peer_token=b"proxies", token=b"clients")


@pytest.fixture
def start(
    reader: GatedReader, registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory
) -> Iterator[tuple[ClientProxy, ExitStack]]:
    """A proxy that forwards to the server, and what ends its clients."""
    proxy = start_proxy(peer_token=b"proxies", token=b"clients")
    serve(proxy, registry, server, registry.register(instance(reader)))
    with ExitStack() as clients:
        yield proxy, clients


def connections(server: StateServer) -> int:
    return len(server._endpoint._places.connections)


def test_each_address_has_a_connection_and_those_that_ask_for_nothing_give_way(
    server: StateServer, start: tuple[ClientProxy, ExitStack]
) -> None:
    proxy, clients = start
    for number in range(1, MOST_APART + 5):
        client = clients.enter_context(RawClient(proxy.address, token=b"clients", source=f"127.0.0.{number}"))
        for _ in range(2):
            assert isinstance(client.get(STATE, "free"), Values)
        assert connections(server) <= MOST_APART + 1, "one that gives way may still be closing"
    wait_until(lambda: connections(server) == MOST_APART, "closing those that gave way")


def test_further_addresses_share_a_connection_while_those_are_busy(
    reader: GatedReader, server: StateServer, start: tuple[ClientProxy, ExitStack]
) -> None:
    proxy, clients = start
    asked = []
    for number in range(1, MOST_APART + 5):
        client = clients.enter_context(RawClient(proxy.address, token=b"clients", source=f"127.0.0.{number}"))
        asked.append((client, client.send_get(STATE, "gated")))
    wait_until(lambda: connections(server) == MOST_APART + 1, "a connection for each address, and a shared one")
    reader.gate.set()
    assert all(isinstance(client.answer_to(number), Values) for client, number in asked)
    assert connections(server) == MOST_APART + 1


def test_proxy_that_cannot_prove_itself_has_one_connection(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    server, proxy = start_server(), start_proxy()
    serve(proxy, registry, server, registry.register(instance(GatedReader({"free": 1}, []))))
    for source in ("127.0.0.1", "127.0.0.2"):
        with RawClient(proxy.address, source=source) as client:
            assert isinstance(client.get(STATE, "free"), Values)
    assert connections(server) == 1
