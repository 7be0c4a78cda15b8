"""Laws of every endpoint, on a state server and real sockets: limits, refusals, broken connections, shutdown."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from qstate.errors import ClosedError, ConfigError, FailureCode
from qstate.protocol import Failure, Get, Hello, Pong, Values, encode, frame
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


# The handshake and broken frames.


def test_server_without_a_version_in_common_sends_its_versions(start_server: ServerFactory, state_id: bytes) -> None:
    server = start_server()
    with RawClient(server.address, hello=False) as client:
        client.sock.sendall(frame(encode(Hello((999,), None, "from the future"))))
        notice = client.receive_close_notice()
    assert notice.code == FailureCode.VERSION_MISMATCH
    assert notice.details == {"versions": "1"}
    reconnects(server, state_id)


def test_token_is_required(start_server: ServerFactory, state_id: bytes) -> None:
    server = start_server(token=b"secret")
    for wrong in (None, b"guess"):
        with RawClient(server.address, token=wrong, hello=False) as client:
            client.sock.sendall(client.connection.start())
            assert client.receive_close_notice().code == FailureCode.UNAUTHENTICATED
    with RawClient(server.address, token=b"secret") as client:
        assert isinstance(client.get(state_id, "a"), Values)


def test_request_before_the_handshake_ends_the_connection(start_server: ServerFactory, state_id: bytes) -> None:
    server = start_server()
    with RawClient(server.address, hello=False) as client:
        client.sock.sendall(frame(encode(Get(1, 1000, state_id, None, {}, ("a",)))))
        assert client.receive_close_notice().code == FailureCode.MALFORMED
    reconnects(server, state_id)


BROKEN = {
    "oversized frame": (FailureCode.TOO_LARGE, (1 << 30).to_bytes(4, "big")),
    "not MessagePack": (FailureCode.MALFORMED, frame(b"\xc1\xc1\xc1")),
    "not an array": (FailureCode.MALFORMED, frame(msgpack.packb({"get": 1}))),
    "truncated MessagePack": (FailureCode.MALFORMED, frame(b"\x97\x02\x05")),
    "another protocol": (FailureCode.TOO_LARGE, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


@pytest.mark.parametrize(("code", "data"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("hello", [True, False], ids=["open", "handshake"])
def test_broken_frame_ends_only_its_connection(
    code: FailureCode, data: bytes, hello: bool, start_server: ServerFactory, state_id: bytes
) -> None:
    server = start_server()
    with RawClient(server.address) as other, RawClient(server.address, hello=hello) as client:
        # Send more: a close with unread input would reset the connection, and the close notice would be lost.
        client.sock.sendall(data + b"\0" * 100_000)
        assert client.receive_close_notice().code == code
        assert isinstance(other.get(state_id, "a"), Values)
    reconnects(server, state_id)


def test_silent_connection_is_closed_at_the_handshake_timeout(start_server: ServerFactory, state_id: bytes) -> None:
    server = start_server(handshake_timeout_s=0.3)
    with RawClient(server.address) as other, RawClient(server.address, hello=False) as client:
        assert client.receive_close_notice().code == FailureCode.DEADLINE_EXCEEDED
        assert isinstance(other.get(state_id, "a"), Values)


def test_client_that_vanishes_in_a_frame_harms_no_other(start_server: ServerFactory, state_id: bytes) -> None:
    statistics = InMemoryStatistics()
    server = start_server(statistics)
    with RawClient(server.address) as client:
        client.sock.sendall(client.connection.send(Get(5, 1000, state_id, None, {}, ("a",)))[:-3])
    with RawClient(server.address) as client:
        # Linger 0: the close is a reset.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.send_get(state_id, "a")
    wait_until(lambda: statistics.snapshot().connections == 0, "closing the broken connections")
    reconnects(server, state_id)


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


def test_requests_over_the_queue_are_refused_with_a_retry_time(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    with RawClient(start_server(max_queued=2).address) as client:
        slow = client.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        queued = client.send_get(state_id, "a")
        refusal = client.get(state_id, "a")
        assert isinstance(refusal, Failure) and refusal.code == FailureCode.OVERLOADED
        retry_after_ms = refusal.details["retry_after_ms"]
        assert isinstance(retry_after_ms, int) and retry_after_ms > 0
        reader.gate.set()
        assert isinstance(client.answer_to(slow), Values) and isinstance(client.answer_to(queued), Values)
        assert isinstance(client.get(state_id, "a"), Values)


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


def test_idle_connection_is_replaced_by_a_new_one(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader(ENTRIES, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(max_connections=3, query_threads=2)
    with RawClient(server.address) as busy, RawClient(server.address) as idle:
        slow = busy.send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        with RawClient(server.address) as fresh:
            assert isinstance(fresh.get(state_id, "a"), Values)
            wait_until(lambda: is_let_in(server), "replacing an idle connection")
            assert idle.receive_close_notice().code == FailureCode.OVERLOADED
            assert isinstance(fresh.get(state_id, "a"), Values)
        reader.gate.set()
        assert isinstance(busy.answer_to(slow), Values)


def is_let_in(server: StateServer) -> bool:
    with RawClient(server.address, hello=False) as client:
        client.sock.sendall(client.connection.start())
        client.read()
        return not isinstance(client.events.pop(), Failure)


def test_connection_without_a_handshake_is_replaced_first_and_at_once(
    start_server: ServerFactory, state_id: bytes
) -> None:
    server = start_server(max_connections=3)
    with RawClient(server.address) as idle, RawClient(server.address, hello=False) as older:
        older.sock.sendall(older.connection.start()[:-1])
        with RawClient(server.address, hello=False) as younger:
            assert is_let_in(server)
            assert older.receive_close_notice().code == FailureCode.OVERLOADED
            younger.sock.sendall(younger.connection.start())
            younger.read()
            for client in (younger, idle):
                assert isinstance(client.get(state_id, "a"), Values)


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


def test_client_that_never_reads_loses_its_connection(registry: StateRegistry, start_server: ServerFactory) -> None:
    statistics = InMemoryStatistics()
    state_id = registry.register(instance(DictReader({"large": "x" * 500_000, "a": 1.5})))
    server = start_server(statistics, unread_timeout_s=0.2)
    with RawClient(server.address, receive_buffer=4096) as lazy, RawClient(server.address) as other:
        for _ in range(20):  # more than the kernel's buffers hold, less than the server's
            lazy.send_get(state_id, "large")
        wait_until(lambda: statistics.snapshot().connections == 1, "closing the connection that reads nothing")
        assert isinstance(other.get(state_id, "a"), Values)


def test_client_that_never_reads_is_bounded_and_delays_no_other(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    statistics = InMemoryStatistics()
    state_id = registry.register(instance(DictReader({"large": "x" * 500_000, "a": 1.5})))
    server = start_server(statistics, max_frame=1 << 20, max_queued=100_000)
    with RawClient(server.address, receive_buffer=4096) as lazy, RawClient(server.address) as other:
        requests = b"".join(
            lazy.connection.send(Get(number, 60_000, state_id, None, {}, ("large",))) for number in range(1, 20_000)
        )
        lazy.sock.settimeout(0.2)
        # The server stops reading, so not all requests fit into the buffers; or it has already closed the connection.
        with pytest.raises((TimeoutError, ConnectionError)):
            while True:
                lazy.sock.sendall(requests)
        assert isinstance(other.get(state_id, "a"), Values)
        # Far fewer than were sent: the server answers only the requests that it read.
        assert statistics.snapshot().requests < 20_000
    reconnects(server, state_id)


def test_slow_client_gets_every_answer(registry: StateRegistry, start_server: ServerFactory) -> None:
    # Far more than may wait for one client: the server reads its requests only while it has room for the answers.
    state_id = registry.register(instance(DictReader({"large": "x" * 200_000})))
    with RawClient(start_server(max_frame=1 << 18).address, receive_buffer=4096) as client:
        numbers = [client.send_get(state_id, "large", deadline_ms=60_000) for _ in range(60)]
        assert all(isinstance(client.answer_to(number), Values) for number in numbers)


def test_many_connections_get_their_own_answers(registry: StateRegistry, start_server: ServerFactory) -> None:
    state_id = registry.register(instance(DictReader({f"{number}": number for number in range(64)})))
    server = start_server(network_threads=2, query_threads=2)

    def talk(number: int) -> bool:
        with RawClient(server.address) as client:
            return all(
                isinstance(answer := client.get(state_id, f"{number}"), Values)
                and answer.results == (msgpack.packb(number),)
                for _ in range(20)
            )

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(talk, range(64)))


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
