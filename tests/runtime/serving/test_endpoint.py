"""Laws of every endpoint, on a state server and real sockets: ports, threads, limits, shutdown.

The conformance suite has the laws of the handshake, of broken frames and of connections that are slow or replaced.
"""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest

from qstate.errors import ClosedError, ConfigError, FailureCode
from qstate.protocol.messages import Get, Pong, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.sharing.places import IDLE_S
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ServerFactory
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, failure_code, wait_until
from tests.runtime.serving.readers import DictReader, GatedReader, instance

ENTRIES = {"a": 1.5, "slow": 9.5}


@pytest.fixture
def state_id(registry: StateRegistry) -> bytes:
    return registry.register(instance(DictReader(ENTRIES)))


def reconnects(server: StateServer, state_id: bytes) -> None:
    with RawClient(server.address) as client:
        assert isinstance(client.get(state_id, "a"), Values)


# Ports and threads.


def test_ports_are_tried_in_order_and_all_taken_is_one_clear_error(
    start_server: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="qstate")
    first = start_server()
    host, taken = first.address
    second = start_server(ports=f"{taken},0")
    assert second.address[1] != taken
    assert f"Started the Queryable State Server @ {host}:{second.address[1]}" in caplog.text
    with pytest.raises(ConfigError, match=f"Queryable State Server.*{taken},{taken}-{taken}.*127.0.0.1"):
        start_server(ports=f"{taken},{taken}-{taken}")


def test_server_starts_once_and_shuts_down_any_number_of_times(start_server: ServerFactory) -> None:
    server = start_server()
    with pytest.raises(ClosedError):
        server.start()
    server.shutdown()
    server.shutdown()
    with pytest.raises(ClosedError):
        server.start()
    never_started = StateServer(StateRegistry(), EndpointOptions())
    with pytest.raises(ClosedError, match="not been started"):
        _ = never_started.address
    never_started.shutdown()


@pytest.mark.parametrize(
    "name",
    [
        "network_threads",
        "query_threads",
        "max_connections",
        "max_queued",
        "max_frame",
        "max_requests_per_connection",
        "unread_timeout_s",
        "max_buffered_bytes",
        "frame_timeout_s",
    ],
)
def test_options_that_cannot_work_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EndpointOptions(**{name: 0})  # type: ignore[arg-type]


def test_state_access_never_keeps_the_network_waiting(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(network_threads=1, query_threads=2)
    with RawClient(server.address) as client, RawClient(server.address) as other:
        slow = client.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        # The second query thread is free, the same connection is still read, and new connections are accepted.
        assert isinstance(client.get(state_id, "a"), Values)
        assert isinstance(other.get(state_id, "a"), Values)
        slower = other.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        # Now no query thread is free, and the network still answers.
        assert isinstance(client.ping(), Pong) and isinstance(other.ping(), Pong)
        with RawClient(server.address) as third:
            assert isinstance(third.ping(), Pong)
        reader.gate.set()
        assert isinstance(client.answer_to(slow), Values) and isinstance(other.answer_to(slower), Values)


# Limits.


def test_request_whose_deadline_passed_in_the_queue_is_not_executed(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    with RawClient(start_server().address) as client:
        slow = client.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        late = client.send_get(state_id, "a", deadline_ms=1)
        patient = client.send_get(state_id, "a")
        assert isinstance(client.ping(), Pong)  # both are queued by now
        queued_at = time.monotonic()
        wait_until(lambda: time.monotonic() > queued_at + 0.001, "the deadline")
        reader.gate.set()
        assert failure_code(client.answer_to(late)) == FailureCode.DEADLINE_EXCEEDED
        assert isinstance(client.answer_to(slow), Values) and isinstance(client.answer_to(patient), Values)
    assert reader.reads == 2


def test_connection_over_the_limit_is_refused_until_another_closes(
    start_server: ServerFactory, state_id: bytes
) -> None:
    statistics = InMemoryStatistics()
    server = start_server(statistics, max_connections=2)
    with RawClient(server.address) as first:
        with RawClient(server.address) as second:
            with RawClient(server.address, hello=False) as third:
                notice = third.receive_close_notice()
                assert notice.code == FailureCode.OVERLOADED and notice.details["retry_after_ms"]
            assert isinstance(second.get(state_id, "a"), Values)
        wait_until(lambda: statistics.snapshot().connections == 1, "closing the second connection")
        reconnects(server, state_id)
        assert isinstance(first.get(state_id, "a"), Values)


def test_one_connection_takes_no_more_than_its_share_and_others_get_their_turn(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(max_queued=6, max_requests_per_connection=4)
    with RawClient(server.address) as greedy, RawClient(server.address) as other:
        numbers = [greedy.connection.next_id() for _ in range(500)]
        gets = (Get(number, 60_000, state_id, None, {}, ("slow",)) for number in numbers)
        greedy.sock.sendall(b"".join(map(greedy.connection.send, gets)))
        assert reader.entered.acquire(timeout=PATIENCE_S)
        number = other.send_get(state_id, "a")
        assert isinstance(other.ping(), Pong)  # its get has been read, and waits
        reader.gate.set()
        assert isinstance(other.answer_to(number), Values)
        # Those that were read before, and those of a turn: not all that were sent.
        assert reader.order.index("a") < 100
        assert all(isinstance(greedy.answer_to(number), Values) for number in numbers)
    assert reader.reads == 501


def test_requests_that_come_one_by_one_are_also_bounded(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    statistics = InMemoryStatistics()
    server = start_server(statistics, max_requests_per_connection=4)
    with RawClient(server.address) as client, RawClient(server.address) as other:
        numbers = []
        for _ in range(20):
            numbers.append(client.send_get(state_id, "slow"))
            assert isinstance(other.ping(), Pong)  # the server has had time to read
        assert statistics.snapshot().requests <= 4
        reader.gate.set()
        assert all(isinstance(client.answer_to(number), Values) for number in numbers)


def test_busy_connections_are_not_replaced(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(max_connections=2)
    with RawClient(server.address) as first, RawClient(server.address) as second:
        numbers = [(client, client.send_get(state_id, "slow")) for client in (first, second)]
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 1.5 * IDLE_S, "becoming idle, if they were")
        with RawClient(server.address, hello=False) as third:
            assert third.receive_close_notice().code == FailureCode.OVERLOADED
        reader.gate.set()
        assert all(isinstance(client.answer_to(number), Values) for client, number in numbers)


# Shutdown.


def test_shutdown_lets_requests_in_flight_finish_and_refuses_new_ones(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server()
    with RawClient(server.address) as client:
        slow = client.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        ending = threading.Thread(target=server.shutdown, args=(PATIENCE_S,))
        ending.start()
        wait_until(lambda: not connects(server.address), "closing the port")
        assert failure_code(client.get(state_id, "a")) == FailureCode.SHUTTING_DOWN
        reader.gate.set()
        assert isinstance(client.answer_to(slow), Values)
        assert client.receive_close_notice().code == FailureCode.SHUTTING_DOWN
        ending.join(PATIENCE_S)
        assert not ending.is_alive()


def connects(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except (ConnectionRefusedError, ConnectionResetError):  # reset: the port was closed before the accept
        return False
    return True


def test_shutdown_is_bounded_whatever_a_request_does(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server()
    with RawClient(server.address) as client:
        client.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        ending = threading.Thread(target=server.shutdown, args=(0.05,))
        ending.start()
        assert client.receive_close_notice().code == FailureCode.SHUTTING_DOWN
        ending.join(PATIENCE_S)
        assert not ending.is_alive() and not reader.gate.is_set()
        reader.gate.set()
        # The thread that still executed ends with its request.
        wait_until(lambda: not serving_threads(), "the end of the last thread")


def serving_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("qstate-queryable")]


def test_shutdown_with_idle_and_silent_connections_leaves_nothing_open(
    start_server: ServerFactory, state_id: bytes
) -> None:
    statistics = InMemoryStatistics()
    server = start_server(statistics, network_threads=2)
    with RawClient(server.address) as idle, RawClient(server.address, hello=False) as silent:
        assert isinstance(idle.get(state_id, "a"), Values)
        server.shutdown(1.0)
        assert idle.receive_close_notice().code == silent.receive_close_notice().code == FailureCode.SHUTTING_DOWN
    assert statistics.snapshot().connections == 0


def test_statistics_count_what_was_served_and_refused(start_server: ServerFactory, state_id: bytes) -> None:
    statistics = InMemoryStatistics()
    server = start_server(statistics)
    with RawClient(server.address) as client:
        client.get(state_id, "a", "missing")
        client.get(b"\0" * 16, "a")
        client.get(state_id, 7)

        def counted() -> int:
            found = statistics.snapshot()
            return found.successes + sum(found.failures.values())

        wait_until(lambda: counted() == 3, "counting the answers, which follows sending them")
        found = statistics.snapshot()
        assert (found.connections, found.connections_accepted, found.requests, found.keys) == (1, 1, 3, 4)
        assert found.failures == {FailureCode.UNKNOWN_STATE_ID: 1, FailureCode.WRONG_KEY_TYPE: 1}
        assert 0 < found.duration_s < PATIENCE_S
