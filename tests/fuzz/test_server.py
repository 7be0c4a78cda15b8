"""Whatever a client sends, a proxy and a state server go on serving others, log no error and end the connection."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings

from qstate.client import QueryableStateClient
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.fuzz.frames import GOLDEN, streams
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.readers import DictReader, instance

#: `nightly` looks for forty minutes, in parts: hypothesis remembers the examples of a test, and Python's collector
#: stops server and client for a second when there are 20,000, for ten seconds when there are 300,000.
EXAMPLES, PARTS = (settings().max_examples * 4, 1) if settings().max_examples < 1000 else (20_000, 25)
PATIENCE_S = 10.0
HELLO = next(frame for frame in GOLDEN["client"] if frame[5] == 0)


class Errors(logging.Handler):
    """What was logged as an error: a client must not be able to cause any."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Served:
    """A proxy and a state server, a client that asks them, and the errors that they log."""

    def __init__(self, proxy: ClientProxy, server: StateServer, client: QueryableStateClient, errors: Errors) -> None:
        self.addresses = (proxy.address, server.address)
        self.client = client
        self.errors = errors

    def is_alive(self) -> None:
        assert self.client.get("job", "lastTemperature", "JFK").value() == 7
        assert self.errors.found == []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    registry, errors = StateRegistry(), Errors()
    found = instance(DictReader({"JFK": 7}))
    state_id = registry.register(found)
    logging.getLogger("qstate").addHandler(errors)
    with StateServer(registry, EndpointOptions()) as server, ClientProxy(EndpointOptions(), local=server) as proxy:
        at = owner(found, server.address, state_id)
        proxy.set_location_oracle("job", TableOracle(lastTemperature=table(found, at)))
        proxy.set_location_oracle("flights", TableOracle(lastTemp=table(found, at)))
        with QueryableStateClient(*proxy.address) as client:
            yield Served(proxy, server, client, errors)
    logging.getLogger("qstate").removeHandler(errors)


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=EXAMPLES)
@example(chunks=[GOLDEN["client"][0]])
@given(chunks=streams("client"))
def test_any_bytes_harm_nobody_else(served: Served, part: int, chunks: list[bytes]) -> None:
    for address in served.addresses:
        for opening in (b"", HELLO):
            with socket.create_connection(address, timeout=PATIENCE_S) as sock:
                try:
                    sock.sendall(opening)
                    for chunk in chunks:
                        sock.sendall(chunk)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        """Until the server has ended the connection, within the patience."""
                except TimeoutError:
                    raise
                except OSError:
                    """It has ended it earlier: the connection is reset, or no connection any more."""
    served.is_alive()
