"""Laws of throttling, at real sockets: a peer over the request quota is read more slowly, and nothing else happens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qstate.backends.contract import UNBOUNDED, ReadResult
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace
from qstate.protocol.messages import Get, Ping, Poll, Pong, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.client_connection import FEW_AT_ONCE, WAKE_S
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.sharing.request_quota import BURST_S
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.feeds import History
from tests.runtime.serving.oracles import serve
from tests.runtime.serving.raw_client import RawClient, Target, wait_until
from tests.runtime.serving.readers import MAX_PARALLELISM, DictReader, instance

JOB, STATE = "job", "lastTemperature"
#: Of a processor.
SHARE = 0.1
#: What a get takes of it.
WORK_S = 0.004
#: A get of a peer that is over the quota takes at least so long.
SLOWED_S = WORK_S / SHARE
#: So many gets bring a peer over the quota.
TOO_MANY = int(BURST_S / WORK_S) + 2
HERE, OTHER = "127.0.0.1", "127.0.0.2"


class WorkingReader(DictReader):
    """Each read takes `WORK_S` of the processor."""

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        until = time.thread_time() + WORK_S
        while time.thread_time() < until:
            """Work."""
        return super().get(descriptor, namespace, keys, most_bytes)


@pytest.fixture
def reader() -> WorkingReader:
    return WorkingReader({"a": 1, "b": 2})


@pytest.fixture
def statistics() -> InMemoryStatistics:
    return InMemoryStatistics()


@pytest.fixture
def state_id(registry: StateRegistry, reader: WorkingReader) -> bytes:
    return registry.register(instance(reader))


def asked(client: RawClient, state_id: bytes, count: int) -> float:
    """How long so many gets take, one after the other."""
    began = time.monotonic()
    for _ in range(count):
        assert isinstance(client.get(state_id, "a"), Values)
    return time.monotonic() - began


def exceed(client: RawClient, target: Target, server: StateServer, peer: str) -> None:
    """Ask for more at once than the peer may owe, and then for "late", which has to wait."""
    for _ in range(TOO_MANY):
        client.send_get(target, "a", deadline_ms=60_000)
    wait_until(lambda: server.quota.wait_s(peer) > 0, "going over the quota")
    client.send_get(target, "late", deadline_ms=60_000)


def test_peer_over_its_quota_is_slowed_and_another_address_is_not(
    state_id: bytes, reader: WorkingReader, start_server: ServerFactory, statistics: InMemoryStatistics
) -> None:
    server = start_server(statistics, query_quota=SHARE)
    count = TOO_MANY + 20
    with (
        ThreadPoolExecutor(1) as pool,
        RawClient(server.address) as greedy,
        RawClient(server.address, source=OTHER) as modest,
    ):
        took_s = pool.submit(asked, greedy, state_id, count)
        wait_until(lambda: len(reader.order) > TOO_MANY, "going over the quota")
        for _ in range(3):
            assert isinstance(modest.get(state_id, "b"), Values)
        assert not took_s.done()
        assert took_s.result() > 20 * SLOWED_S
    wait_until(lambda: statistics.snapshot().successes == count + 3, "counting every answer")
    assert statistics.snapshot().throttled_s > 0
    assert not statistics.snapshot().failures


def test_nothing_of_a_pipeline_is_lost(state_id: bytes, start_server: ServerFactory) -> None:
    server = start_server(query_quota=SHARE, max_requests_per_connection=8)
    count = 30
    with RawClient(server.address) as client:
        began = time.monotonic()
        numbers = [client.connection.next_id() for _ in range(count)]
        gets = [client.connection.send(Get(number, 60_000, state_id, None, {}, ("a",))) for number in numbers]
        client.sock.sendall(b"".join(gets))
        assert all(isinstance(client.answer_to(number), Values) for number in numbers)
        # The last ones that were read together are answered before it counts what they took.
        assert time.monotonic() - began > (count - TOO_MANY - 8) * SLOWED_S
        assert isinstance(client.ping(), Pong)


def test_read_that_brings_no_message_is_charged_the_waking_of_its_thread(
    start_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(query_quota=SHARE)
    charged: list[float] = []
    charge = server.quota.charge

    def noted(peer: str, seconds: float) -> None:
        charge(peer, seconds)
        if peer == HERE:
            charged.append(seconds)

    monkeypatch.setattr(server.quota, "charge", noted)
    with RawClient(server.address) as client:
        for _ in range(20):
            client.ping()
        assert WAKE_S not in charged
        ping = client.connection.send(Ping(client.connection.next_id()))
        for number in range(1, len(ping)):
            client.sock.sendall(ping[number - 1 : number])
            wait_until(lambda number=number: charged.count(WAKE_S) == number, "the charge of a part")
        client.sock.sendall(ping[-1:])
        assert isinstance(client.ping(), Pong)
        assert charged.count(WAKE_S) == len(ping) - 1


def test_few_requests_are_taken_at_once_of_a_connection_that_had_to_wait(
    state_id: bytes, start_server: ServerFactory
) -> None:
    server = start_server(query_quota=SHARE)
    with RawClient(server.address) as client:
        asked(client, state_id, TOO_MANY - 1)

        def is_over() -> bool:  # what it owes is less with each moment, so a slow machine has to ask again
            asked(client, state_id, 1)
            return server.quota.wait_s(HERE) > 0

        wait_until(is_over, "being over the quota")
        numbers = [client.connection.next_id() for _ in range(3 * FEW_AT_ONCE)]
        gets = [client.connection.send(Get(number, 60_000, state_id, None, {}, ("a",))) for number in numbers]
        client.sock.sendall(b"".join(gets))
        assert isinstance(client.answer_to(numbers[0]), Values)
        began = time.monotonic()
        assert isinstance(client.answer_to(numbers[-1]), Values)
        assert time.monotonic() - began > FEW_AT_ONCE * SLOWED_S


def test_polls_that_wait_do_not_keep_a_connection_from_being_read(
    tmp_path: Path, state_id: bytes, registry: StateRegistry, start_server: ServerFactory
) -> None:
    history = History(tmp_path / "checkpoint")
    (followed,) = history.instances()
    changing = registry.register(followed)
    server = start_server(query_quota=SHARE)
    with RawClient(server.address) as client:
        for _ in range(2 * FEW_AT_ONCE):
            number = client.connection.next_id()
            poll = Poll(number, 60_000, changing, (), (), None, 0, MAX_PARALLELISM, 0, b"", 60_000, 1 << 24)
            client.sock.sendall(client.connection.send(poll))
        asked(client, state_id, TOO_MANY + FEW_AT_ONCE)
        assert not client.events


def test_connections_of_a_peer_take_turns(state_id: bytes, reader: WorkingReader, start_server: ServerFactory) -> None:
    server = start_server(query_quota=SHARE)
    clients = [RawClient(server.address) for _ in range(4)]
    with ThreadPoolExecutor(len(clients)) as pool:
        took = [pool.submit(asked, client, state_id, TOO_MANY) for client in clients]
        assert sum(each.result() > 0 for each in took) == len(clients)
    assert max(each.result() for each in took) > (len(clients) * TOO_MANY - TOO_MANY - 4) * SLOWED_S
    for client in clients:
        client.sock.close()


def test_ping_of_a_peer_that_waits_is_answered(state_id: bytes, start_server: ServerFactory) -> None:
    server = start_server(query_quota=SHARE)
    with RawClient(server.address) as client:
        asked(client, state_id, TOO_MANY)
        number = client.connection.next_id()
        client.sock.sendall(client.connection.send(Ping(number)))
        assert isinstance(client.answer_to(number), Pong)


def test_frame_is_not_late_while_its_connection_is_not_read(
    state_id: bytes, reader: WorkingReader, start_server: ServerFactory, statistics: InMemoryStatistics
) -> None:
    share = 0.002  # so little that a slow machine sends the rest of the frame long before the timeout
    timeout_s = WORK_S / share / 4
    server = start_server(statistics, query_quota=share, frame_timeout_s=timeout_s)
    with RawClient(server.address) as client:
        asked(client, state_id, TOO_MANY - 2)
        numbers = [client.connection.next_id() for _ in range(2)]
        whole, half = (client.connection.send(Get(number, 60_000, state_id, None, {}, ("a",))) for number in numbers)
        client.sock.sendall(whole + half[:-1])
        wait_until(lambda: len(reader.order) == TOO_MANY - 1 and server.quota.wait_s(HERE), "being over the quota")
        assert server.quota.wait_s(HERE) > timeout_s
        client.sock.sendall(half[-1:])
        assert all(isinstance(client.answer_to(number), Values) for number in numbers)
    assert statistics.snapshot().throttled_s > 0


def test_connection_that_waits_can_end(state_id: bytes, start_server: ServerFactory) -> None:
    server = start_server(query_quota=SHARE)
    with RawClient(server.address) as client:
        asked(client, state_id, TOO_MANY)
    wait_until(lambda: not server._endpoint._places.connections, "seeing the end")


def test_shutdown_does_not_wait_for_the_quota(state_id: bytes, start_server: ServerFactory) -> None:
    server = start_server(query_quota=0.001)
    with RawClient(server.address) as client:
        asked(client, state_id, TOO_MANY - 2)
        client.send_get(state_id, "a")
        began = time.monotonic()
        server.shutdown(1.0)
        assert time.monotonic() - began < 10 * 1.0


def test_proxy_does_not_wait_for_clients_of_its_address(
    state_id: bytes,
    reader: WorkingReader,
    registry: StateRegistry,
    start_server: ServerFactory,
    start_proxy: ProxyFactory,
) -> None:
    server = start_server(query_quota=0.001, token=b"clients", peer_token=b"proxies")
    proxy = start_proxy(token=b"clients", peer_token=b"proxies")
    serve(proxy, registry, server, state_id)
    with (
        RawClient(server.address, token=b"clients") as greedy,
        RawClient(proxy.address, token=b"clients", source=OTHER) as client,
    ):
        exceed(greedy, state_id, server, HERE)
        assert isinstance(client.get((JOB, STATE), "b"), Values)
        assert "b" in reader.order and "late" not in reader.order


def test_proxy_and_server_of_a_process_share_its_quota(
    state_id: bytes, registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    server = start_server(query_quota=SHARE)
    proxy = start_proxy(server)
    serve(proxy, registry, server, state_id)
    with RawClient(server.address) as direct, RawClient(proxy.address) as client:
        assert isinstance(client.get((JOB, STATE), "a"), Values)
        asked(direct, state_id, TOO_MANY)
        began = time.monotonic()
        for _ in range(10):
            assert isinstance(client.get((JOB, STATE), "a"), Values)
        assert time.monotonic() - began > 9 * SLOWED_S


def test_clients_of_a_proxy_do_not_wait_for_one_another(
    state_id: bytes,
    reader: WorkingReader,
    registry: StateRegistry,
    start_server: ServerFactory,
    start_proxy: ProxyFactory,
) -> None:
    server = start_server(query_quota=0.001, token=b"clients", peer_token=b"proxies")
    proxy = start_proxy(token=b"clients", peer_token=b"proxies")
    serve(proxy, registry, server, state_id)
    with (
        RawClient(proxy.address, token=b"clients", source=OTHER) as greedy,
        RawClient(server.address, token=b"clients", source=OTHER) as direct,
        RawClient(proxy.address, token=b"clients") as modest,
    ):
        exceed(greedy, (JOB, STATE), server, OTHER)
        direct.send_get(state_id, "direct", deadline_ms=60_000)
        assert isinstance(modest.get((JOB, STATE), "b"), Values)
        assert "b" in reader.order and "late" not in reader.order
        assert "direct" not in reader.order, "an address has one account, whichever way its requests take"
