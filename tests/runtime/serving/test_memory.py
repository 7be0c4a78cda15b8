"""Laws of memory, frames and addresses: what clients can make a server hold, and who must give up."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgpack
import pytest

from qstate.backends.contract import UNBOUNDED, ReadResult
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode
from qstate.keys import Key, Namespace
from qstate.protocol.codec import encode, frame
from qstate.protocol.messages import Failure, Get, Pong, Values
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.sharing.memory_budget import FREE_BYTES, MemoryBudget
from tests.runtime.serving.conftest import ServerFactory
from tests.runtime.serving.raw_client import RawClient, failure_code, wait_until
from tests.runtime.serving.readers import DictReader, GatedReader, instance

MAX_FRAME = 256 * 1024
LARGE = "x" * 100_000
#: Of a frame that has begun.
PART = struct.pack(">I", MAX_FRAME) + bytes(MAX_FRAME // 2)


class Asked:
    """A holder that only remembers."""

    def __init__(self, host: str, *, is_proxy: bool = False) -> None:
        self.host = host
        self.is_proxy = is_proxy
        self.held = 0
        self.gave_up = False

    def held_bytes(self) -> int:
        return self.held

    def give_up_memory(self) -> None:
        self.gave_up = True

    def hold(self, budget: MemoryBudget, size: int) -> None:
        self.held = size
        budget.hold(self, size)


def test_the_address_that_holds_most_gives_up_what_it_has_held_longest() -> None:
    budget = MemoryBudget(10 * FREE_BYTES)
    proxy, first, second = Asked("proxy"), Asked("crowd"), Asked("crowd")
    proxy.hold(budget, 4 * FREE_BYTES)
    first.hold(budget, 3 * FREE_BYTES)
    second.hold(budget, 3 * FREE_BYTES)
    assert budget.total == 10 * FREE_BYTES
    second.hold(budget, 4 * FREE_BYTES)
    assert [first.gave_up, second.gave_up, proxy.gave_up] == [True, False, False]
    assert budget.total == 8 * FREE_BYTES


def test_proxies_of_the_job_give_nothing_up_while_clients_hold_anything() -> None:
    budget = MemoryBudget(10 * FREE_BYTES)
    proxy, client, other = Asked("host", is_proxy=True), Asked("host"), Asked("elsewhere")
    proxy.hold(budget, 6 * FREE_BYTES)
    client.hold(budget, 2 * FREE_BYTES)
    other.hold(budget, 3 * FREE_BYTES)
    assert [proxy.gave_up, client.gave_up, other.gave_up] == [False, False, True]
    client.hold(budget, 5 * FREE_BYTES)
    assert [proxy.gave_up, client.gave_up] == [False, True]
    proxy.hold(budget, 11 * FREE_BYTES)
    assert proxy.gave_up


def test_memory_that_was_freed_meanwhile_does_not_count() -> None:
    budget = MemoryBudget(10 * FREE_BYTES)
    quick, other = Asked("a"), Asked("b")
    quick.hold(budget, 9 * FREE_BYTES)
    quick.held = 0  # its client has read all of it
    other.hold(budget, 9 * FREE_BYTES)
    assert not quick.gave_up and not other.gave_up
    assert budget.total == 9 * FREE_BYTES


def test_a_budget_has_fallen_once_after_much_was_held() -> None:
    budget = MemoryBudget(10 * FREE_BYTES)
    holder = Asked("a")
    assert not budget.has_fallen(4 * FREE_BYTES)
    holder.hold(budget, 5 * FREE_BYTES)
    assert not budget.has_fallen(4 * FREE_BYTES)
    holder.held = 0
    assert budget.has_fallen(4 * FREE_BYTES)
    assert not budget.has_fallen(4 * FREE_BYTES)


def test_little_is_not_counted() -> None:
    budget = MemoryBudget(1)
    small = Asked("a")
    small.hold(budget, FREE_BYTES)
    assert not small.gave_up and budget.total == 0


def test_frames_that_never_end_give_up_the_oldest_first(registry: StateRegistry, start_server: ServerFactory) -> None:
    state_id = registry.register(instance(DictReader({"a": 1})))
    server = start_server(max_frame=MAX_FRAME, max_buffered_bytes=1)  # so the budget is four frames
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(12)]
        for client in clients:
            client.sock.sendall(PART)
            with RawClient(server.address) as other:
                assert isinstance(other.get(state_id, "a"), Values)
        assert clients[0].receive_close_notice().code == FailureCode.OVERLOADED
        clients[-1].sock.sendall(bytes(MAX_FRAME - len(PART) + 4))  # it is whole, and no message
        assert clients[-1].receive_close_notice().code == FailureCode.MALFORMED


def test_answers_that_nobody_reads_cost_connections_and_not_memory(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader({"a": 1, "b": LARGE, "c": LARGE})))
    server = start_server(max_frame=MAX_FRAME, max_buffered_bytes=1)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, receive_buffer=4096)) for _ in range(12)]
        for client in clients:
            for _ in range(80):
                client.send_get(state_id, "b", "c")
            with RawClient(server.address) as other:
                assert isinstance(other.get(state_id, "a"), Values)
            assert server._endpoint._memory.total <= 4 * MAX_FRAME
        wait_until(lambda: len(server._endpoint._places.connections) <= 6, "closing most of the connections")


def test_a_frame_that_has_begun_must_end_in_time(registry: StateRegistry, start_server: ServerFactory) -> None:
    state_id = registry.register(instance(DictReader({"a": 1})))
    server = start_server(frame_timeout_s=0.2)
    with RawClient(server.address) as idle, RawClient(server.address) as late, RawClient(server.address) as slow:
        assert isinstance(idle.get(state_id, "a"), Values)
        late.sock.sendall(frame(encode(Get(1, 10_000, state_id, None, {}, ("a",))))[:-1])
        notice = late.receive_close_notice()
        assert notice.code == FailureCode.DEADLINE_EXCEEDED
        assert isinstance(idle.get(state_id, "a"), Values)
        for byte in slow.connection.send(Get(1, 10_000, state_id, None, {}, ("a",))):
            slow.sock.sendall(bytes((byte,)))
        assert isinstance(slow.answer_to(1), Values)


def test_requests_in_flight_are_bounded_by_what_they_cost(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = GatedReader({"a": 1}, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(max_frame=MAX_FRAME, max_buffered_bytes=1)
    keys = tuple(f"{number} {LARGE}" for number in range(2))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address)) for _ in range(4)]
        clients[0].send_get(state_id, "slow")
        assert reader.entered.acquire(timeout=10)
        for client in clients[1:]:
            client.send_get(state_id, *keys)
            client.send_get(state_id, *keys)
        refused = clients[-1].answer_to(2)
        assert failure_code(refused) == FailureCode.OVERLOADED
        reader.gate.set()
        assert isinstance(clients[1].answer_to(1), Values)
        wait_until(lambda: isinstance(clients[-1].get(state_id, *keys), Values), "room for other requests")


def test_one_address_does_not_take_all_places(registry: StateRegistry, start_server: ServerFactory) -> None:
    state_id = registry.register(instance(DictReader({"a": 1})))
    server = start_server(max_connections=8, max_connections_per_address=3)
    with ExitStack() as stack:
        crowd = [stack.enter_context(RawClient(server.address)) for _ in range(3)]
        with RawClient(server.address, hello=False) as further:
            assert further.receive_close_notice().code == FailureCode.OVERLOADED
        with socket.create_connection(server.address, source_address=("127.0.0.2", 0)) as other:
            other.sendall(crowd[0].connection.start())
            assert other.recv(4)
        assert all(isinstance(client.get(state_id, "a"), Values) for client in crowd)


@pytest.mark.parametrize("options", [{"max_connections": 2}, {"max_connections": 9, "max_connections_per_address": 2}])
def test_proxies_of_the_job_find_a_place_and_room_when_clients_have_taken_all(
    options: dict[str, int], registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = GatedReader({"slow": 1, "a": 2}, gated=["slow"])
    state_id = registry.register(instance(reader))
    server = start_server(**options, max_queued=2, token=b"clients", peer_token=b"proxies")
    with ExitStack() as stack:

        def client(token: bytes) -> RawClient:
            return stack.enter_context(RawClient(server.address, token=token))

        crowd = [client(b"clients") for _ in range(2)]
        waiting = [(one, one.send_get(state_id, "slow")) for one in crowd]
        assert all(isinstance(one.ping(), Pong) for one in crowd)  # the gets have been read
        for _ in range(2):
            with RawClient(server.address, token=b"clients", hello=False) as further:
                further.sock.sendall(further.connection.start())
                assert further.receive_close_notice().code == FailureCode.OVERLOADED
        proxies = [client(b"proxies") for _ in range(3)]
        assert failure_code(crowd[0].get(state_id, "a")) == FailureCode.OVERLOADED
        waiting.append((proxies[0], proxies[0].send_get(state_id, "a")))
        assert all(isinstance(one.ping(), Pong) for one in proxies)
        reader.gate.set()
        assert all(isinstance(one.answer_to(number), Values) for one, number in waiting)


@pytest.mark.parametrize("isolation", ["live", "committed"])
def test_a_get_of_many_keys_takes_turns(registry: StateRegistry, start_server: ServerFactory, isolation: str) -> None:
    keys = [str(number) for number in range(5_000)]
    reader = GatedReader({key: key for key in keys}, gated=keys[:1])
    state_id = registry.register(instance(reader, committed=reader))
    with RawClient(start_server().address) as many, RawClient(start_server().address) as other:
        number = many.send_get(state_id, *keys, options={"isolation": isolation})
        assert reader.entered.acquire(timeout=10)
        reader.gated.clear()
        waiting = other.send_get(state_id, "7")
        reader.gate.set()
        assert isinstance(other.answer_to(waiting), Values)
        answer = many.answer_to(number)
    assert isinstance(answer, Values)
    assert answer.results == tuple(msgpack.packb(key) for key in keys)
    assert set(answer.epochs) == {reader.epoch}
    # The other get was read after one slice, or a few, and not after all of them.
    assert reader.order.index("7") < len(keys)


def test_a_committed_get_of_many_keys_is_of_one_epoch(registry: StateRegistry, start_server: ServerFactory) -> None:
    keys = [str(number) for number in range(1_000)]
    reader = CommittingReader({key: key for key in keys})
    state_id = registry.register(instance(reader, committed=reader))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, *keys, options={"isolation": "committed"})
        assert isinstance(answer, Values) and set(answer.epochs) == {9}
        assert answer.results == tuple(msgpack.packb(key) for key in keys)
        live = client.get(state_id, *keys)
        assert isinstance(live, Values) and len(set(live.epochs)) == 1


class CommittingReader(DictReader):
    """An epoch is committed before the second read, and another before the third."""

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        found = super().get(descriptor, namespace, keys, most_bytes)
        self.epoch = min(9, self.epoch + 1)
        return found


def test_equal_keys_of_a_large_get_count_each_time(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = DictReader({"a": LARGE, "b": 1})
    state_id = registry.register(instance(reader))
    with RawClient(start_server(max_frame=MAX_FRAME).address) as client:
        refused = client.get(state_id, "b", *("a",) * 1_000)
        assert failure_code(refused) == FailureCode.TOO_LARGE and isinstance(refused, Failure)
        assert refused.details == {"field": "answer", "limit": MAX_FRAME}
    assert reader.order == ["b", "a"]


def test_frame_that_came_in_two_parts_is_not_late_afterwards(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader({"a": 1})))
    timeout_s = 0.2
    server = start_server(frame_timeout_s=timeout_s)
    with RawClient(server.address) as client:
        number = client.connection.next_id()
        data = client.connection.send(Get(number, 60_000, state_id, None, {}, ("a",)))
        client.sock.sendall(data[:-1])
        wait_until(lambda: all(each.frame_begun_at for each in server._endpoint._places.connections), "a half frame")
        client.sock.sendall(data[-1:])
        assert isinstance(client.answer_to(number), Values)
        until = time.monotonic() + 2 * timeout_s
        wait_until(lambda: time.monotonic() > until, "the time of a frame")
        assert isinstance(client.get(state_id, "a"), Values)
