"""Laws of a proxy with a state server in its own process: the same answers, without a socket where possible."""

from __future__ import annotations

import socket
import threading

import pytest

from qstate.errors import FailureCode
from qstate.keys import KeyGroupRange, key_group
from qstate.protocol.messages import Description, Get, Location, Pong, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.routing.location import Owner
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, failure_code, value, wait_until
from tests.runtime.serving.readers import (
    EPOCH,
    EVERYTHING,
    MAX_PARALLELISM,
    DictReader,
    FailingReader,
    GatedReader,
    instance,
)

TARGET = ("job", "lastTemperature")
ENTRIES = {f"key {number}": float(number) for number in range(100)}
LOWER, UPPER = KeyGroupRange(0, 64), KeyGroupRange(64, MAX_PARALLELISM)


@pytest.fixture
def counted() -> InMemoryStatistics:
    return InMemoryStatistics()


@pytest.fixture
def server(start_server: ServerFactory, counted: InMemoryStatistics) -> StateServer:
    return start_server(counted)


def test_get_is_answered_and_counted_without_a_connection(
    registry: StateRegistry, server: StateServer, counted: InMemoryStatistics, start_proxy: ProxyFactory
) -> None:
    served = instance(DictReader(ENTRIES))
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with RawClient(proxy.address) as client:
        assert isinstance(client.locate(*TARGET), Location)  # now the location is known
        answer = client.get(TARGET, "key 7", "missing")
        assert isinstance(answer, Values)
        assert (answer.results, answer.epochs) == ((value(7.0), None), (EPOCH, EPOCH))
        assert failure_code(client.get(TARGET, 7)) == FailureCode.WRONG_KEY_TYPE
        assert failure_code(client.get(TARGET, "a", options={"isolation": "committed"})) == FailureCode.UNSUPPORTED
        assert failure_code(client.get(TARGET, "a", deadline_ms=0)) == FailureCode.DEADLINE_EXCEEDED
        assert failure_code(client.get(("other", "state"), "a")) == FailureCode.UNKNOWN_JOB
        jobs, states = client.describe(None), client.describe("job")
        assert isinstance(jobs, Description) and isinstance(states, Description)
    found = counted.snapshot()
    assert (found.connections_accepted, found.requests, found.successes) == (0, 3, 1)
    assert found.failures == {FailureCode.WRONG_KEY_TYPE: 1, FailureCode.UNSUPPORTED: 1}


def test_keys_of_the_local_and_another_owner_are_merged(
    registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory
) -> None:
    elsewhere_registry = StateRegistry()
    elsewhere = StateServer(elsewhere_registry, EndpointOptions())
    elsewhere.start()
    try:
        lower, upper = (
            instance(DictReader(ENTRIES, epoch), key_groups=part) for epoch, part in ((1, LOWER), (2, UPPER))
        )
        owners = (
            owner(lower, server.address, registry.register(lower)),
            owner(upper, elsewhere.address, elsewhere_registry.register(upper)),
        )
        proxy = start_proxy(local=server)
        proxy.set_location_oracle("job", TableOracle(lastTemperature=table(lower, *owners)))
        with RawClient(proxy.address) as client:
            together = client.get(TARGET, *ENTRIES)
            alone = [client.get(TARGET, key) for key in ENTRIES]
    finally:
        elsewhere.shutdown()
    epochs = tuple(1 if key_group(key, MAX_PARALLELISM) in LOWER else 2 for key in ENTRIES)
    assert isinstance(together, Values) and set(epochs) == {1, 2}
    assert together.epochs == epochs and together.results == tuple(map(value, ENTRIES.values()))
    for answer, epoch, number in zip(alone, epochs, ENTRIES.values(), strict=True):
        assert isinstance(answer, Values)
        assert (answer.epochs, answer.results) == ((epoch,), (value(number),))


def test_stale_state_id_is_looked_up(registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory) -> None:
    served = instance(DictReader(ENTRIES))
    old = registry.register(served)
    oracle = TableOracle(lastTemperature=table(served, owner(served, server.address, old)))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        registry.unregister(old)
        restored = instance(DictReader({"key 1": 100.0}))
        new = registry.register(restored)
        oracle.tables["lastTemperature"] = table(restored, owner(restored, server.address, new))
        for _ in range(2):
            answer = client.get(TARGET, "key 1")
            assert isinstance(answer, Values) and answer.results == (value(100.0),)
    assert oracle.asked == 2


def test_transient_failure_is_retried(registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory) -> None:
    entries: dict[str, object] = {"key 1": FailureCode.CONCURRENT_MODIFICATION}
    reader = DictReader(entries)
    served = instance(reader)
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with RawClient(proxy.address) as client:
        number = client.send_get(TARGET, "key 1")
        wait_until(lambda: reader.reads >= 2, "reading it again")
        entries["key 1"] = 1.0
        answer = client.answer_to(number)
    assert isinstance(answer, Values) and answer.results == (value(1.0),)


def test_bug_in_a_backend_is_internal(registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory) -> None:
    served = instance(FailingReader())
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with RawClient(proxy.address) as client:
        for _ in range(2):
            assert failure_code(client.get(TARGET, "key 1")) == FailureCode.INTERNAL


def test_local_state_access_never_delays_the_network(
    registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory
) -> None:
    reader = GatedReader(ENTRIES, gated=["key 1"])
    served = instance(reader)
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with RawClient(proxy.address) as client, RawClient(proxy.address) as other:
        assert isinstance(client.get(TARGET, "key 2"), Values)
        slow = client.send_get(TARGET, "key 1")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        assert isinstance(client.ping(), Pong) and isinstance(other.ping(), Pong)
        ending = threading.Thread(target=proxy.shutdown, args=(PATIENCE_S,))
        ending.start()
        reader.gate.set()
        assert isinstance(client.answer_to(slow), Values)
        ending.join(PATIENCE_S)
        assert not ending.is_alive()


def test_local_server_that_has_shut_down_is_not_read(
    registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory
) -> None:
    served = instance(DictReader(ENTRIES))
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        server.shutdown(0.0)
        assert failure_code(client.get(TARGET, "key 1", deadline_ms=1000)) == FailureCode.UNKNOWN_KEY_GROUP_LOCATION


@pytest.mark.parametrize("max_frame", [4 << 20, 5600 << 10], ids=["too little unread for a pause", "congested"])
def test_answers_go_on_when_the_client_has_read_although_another_owner_is_silent(
    max_frame: int, registry: StateRegistry, server: StateServer, start_proxy: ProxyFactory
) -> None:
    served = instance(DictReader({"large": b"x" * (300 << 10)}))
    here = owner(served, server.address, registry.register(served))
    proxy = start_proxy(local=server, max_frame=max_frame)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, here)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        elsewhere = Owner(EVERYTHING, *silent.getsockname(), b"1" * 16)
        proxy.set_location_oracle("elsewhere", TableOracle(lastTemperature=table(served, elsewhere)))
        with RawClient(proxy.address, receive_buffer=4096) as client:
            client.locate(*TARGET)  # now the location is known
            (connection,) = proxy._endpoint._places.connections
            for _ in range(2):
                client.send_get(("elsewhere", "lastTemperature"), "key 1", deadline_ms=60_000)
            wait_until(lambda: len(connection.forwarded._asked) == 2, "two gets that wait for the silent owner")
            numbers = [client.connection.next_id() for _ in range(60)]
            gets = [client.connection.send(Get(number, 60_000, TARGET, None, {}, ("large",))) for number in numbers]
            client.sock.sendall(b"".join(gets))
            wait_until(lambda: connection.channel.waiting_bytes() and not connection.queued, "a pause of the answers")
            assert all(isinstance(client.answer_to(number), Values) for number in numbers)
