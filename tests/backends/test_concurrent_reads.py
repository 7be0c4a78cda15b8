"""Readers in other threads while the job writes: the heap's hazard, provoked step by step, and what never happens.

Nothing here waits for luck: a serializer or a time zone stops in the middle of a read until the operator has
changed the value. Reads that use neither, RocksDB's, are simply done before the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import msgpack
import pytest

from qstate.backends import Capability, Isolation, StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.serializers import MessagePackSerializer, Serializer
from tests.backends.factories import open_named
from tests.backends.states import LIST, MAP, VALUE, read_answer

WAIT_S = 30.0


class Pause:
    """A point inside a read, at which the reading thread lets the operator's thread change something."""

    def __init__(self) -> None:
        self.reached = Event()
        self.go_on = Event()

    def here(self) -> None:
        if current_thread() is not main_thread():
            self.reached.set()
            assert self.go_on.wait(WAIT_S)


PAUSE = Pause()


@pytest.fixture(autouse=True)
def fresh_pause() -> Iterator[None]:
    PAUSE.reached, PAUSE.go_on = Event(), Event()
    yield


@pytest.fixture
def heap(tmp_path: Path) -> Iterator[StateBackend]:
    with open_named("heap", tmp_path) as backend:
        yield backend


class PausingSerializer(Serializer):
    """MessagePack of a list or dict, one element after the other, with a pause after each."""

    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        packer, parts = MessagePackSerializer(), []
        for element in value.items() if isinstance(value, dict) else value:
            parts.append(packer.dumps(list(element) if isinstance(value, dict) else element))
            PAUSE.here()
        return bytes([0x90 | len(parts)]) + b"".join(parts)

    def loads(self, data: bytes) -> Any:
        found = MessagePackSerializer().loads(data)
        return dict(found) if found and isinstance(found[0], list) else found


class PausingZone(tzinfo):
    """msgpack runs Python code for a time zone, in the middle of its own C code."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        PAUSE.here()
        return timedelta(0)


PAUSING = ValueStateDescriptor("pausing", serializer=PausingSerializer())


def read_while(backend: StateBackend, descriptor: StateDescriptor, change: Callable[[], None]) -> Any:
    """The live answer for key `k` of a read that `change` interrupts, if a read can be."""
    reader = backend.reader(Isolation.LIVE)
    with ThreadPoolExecutor(1) as pool:
        answer: Future[Any] = pool.submit(lambda: reader.get(descriptor, None, ["k"]).values[0])
        answer.add_done_callback(lambda _: PAUSE.reached.set())
        try:
            assert PAUSE.reached.wait(WAIT_S)
            change()
        finally:
            PAUSE.go_on.set()
        return answer.result(WAIT_S)


def is_heap(backend: StateBackend) -> bool:
    return Capability.SNAPSHOT_READS not in backend.capabilities


def test_a_value_changed_in_place_is_torn_on_the_heap_and_whole_elsewhere(backend: StateBackend) -> None:
    table = backend.table(PAUSING)
    value = [1, 1]
    table.put("k", value)
    backend.publish()

    def change() -> None:
        found = table.get("k")
        found[:] = [2, 2]
        table.put("k", found)

    answer = read_while(backend, PAUSING, change)
    assert answer == msgpack.packb([1, 2] if is_heap(backend) else [1, 1])
    _unharmed(backend, PAUSING, [2, 2])


def test_a_dict_that_grows_meanwhile_is_a_concurrent_modification(backend: StateBackend) -> None:
    table = backend.table(PAUSING)
    table.put("k", {"a": 1})
    backend.publish()

    def change() -> None:
        found = table.get("k")
        found["b"] = 2
        table.put("k", found)

    answer = read_while(backend, PAUSING, change)
    assert answer == (FailureCode.CONCURRENT_MODIFICATION if is_heap(backend) else msgpack.packb([["a", 1]]))
    _unharmed(backend, PAUSING, {"a": 1, "b": 2})


@pytest.mark.parametrize("new", [[], [3, 4]], ids=["shorter", "longer"])
def test_an_answer_that_no_client_could_decode_is_a_concurrent_modification(
    backend: StateBackend, new: list[int]
) -> None:
    """msgpack writes a list's length first: interrupted after it, its bytes would not even be MessagePack."""
    table = backend.table(VALUE)
    moment = datetime(2013, 1, 1, tzinfo=PausingZone())
    table.put("k", [moment, 1])
    backend.publish()

    def change() -> None:
        found = table.get("k")
        found[1:] = new
        table.put("k", found)

    answer = read_while(backend, VALUE, change)
    before = MessagePackSerializer().dumps([moment, 1])
    assert answer == (FailureCode.CONCURRENT_MODIFICATION if is_heap(backend) else before)
    _unharmed(backend, VALUE, [moment.astimezone(timezone.utc), *new])


@pytest.mark.parametrize(
    ("descriptor", "start", "change"),
    [
        (
            ListStateDescriptor("pausing list", serializer=PausingSerializer()),
            [[1], [2]],
            lambda table: table.list_add("k", [[3]]),
        ),
        (
            MapStateDescriptor("pausing map", serializer=PausingSerializer()),
            {"a": [1], "b": [2]},
            lambda table: table.map_put("k", "c", [3]),
        ),
    ],
    ids=["list", "map"],
)
def test_a_list_or_map_that_grows_meanwhile_is_answered_as_it_was(
    backend: StateBackend, descriptor: StateDescriptor, start: Any, change: Callable[[Any], None]
) -> None:
    """The heap copies a list's or map's references in one step, so appends and new entries tear nothing."""
    table = backend.table(descriptor)
    table.put("k", deepcopy(start))  # what is put belongs to the backend
    backend.publish()
    answer = read_while(backend, descriptor, lambda: change(table))
    assert read_answer(descriptor, answer) == start
    assert len(table.get("k")) == 3


def _unharmed(backend: StateBackend, descriptor: StateDescriptor, expected: Any) -> None:
    """The state is what the job made of it, live, durable and after a rollback."""
    table = backend.table(descriptor)
    found = table.get("k")
    assert found == expected
    list(backend.commit(0))
    backend.begin(1)
    table.put("k", [0])
    backend.rollback()
    assert table.get("k") == expected
    reader = backend.reader(Isolation.COMMITTED)
    data = reader.get(descriptor, None, ["k"]).values[0]
    assert isinstance(data, bytes)
    assert descriptor.serializer.loads(data) == expected


class PausingKey(str):
    """A key whose `number`th lookup in a dict, from now on, pauses: a read can be stopped between any two of them."""

    __slots__ = ("lookups", "number")

    def __new__(cls, text: str, number: int) -> PausingKey:
        key = super().__new__(cls, text)
        key.lookups, key.number = 0, number
        return key

    def __hash__(self) -> int:
        if current_thread() is not main_thread():
            self.lookups += 1
            if self.lookups == self.number:
                PAUSE.here()
        return super().__hash__()

    __eq__ = str.__eq__


@pytest.mark.parametrize("lookup", range(1, 7))
@pytest.mark.parametrize("descriptor", [VALUE, LIST, MAP], ids=lambda descriptor: descriptor.kind.value)
def test_a_write_between_two_steps_of_a_committed_read_does_not_show(
    heap: StateBackend, descriptor: StateDescriptor, lookup: int
) -> None:
    old, new = ({"m": 1}, {"m": 2}) if descriptor is MAP else ([1], [2]) if descriptor is LIST else (1, 2)
    table = heap.table(descriptor)
    table.put("k", old)
    list(heap.commit(0))
    heap.begin(1)
    reader = heap.reader(Isolation.COMMITTED)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: reader.get(descriptor, None, [PausingKey("k", lookup)]).values[0])
        answer.add_done_callback(lambda _: PAUSE.reached.set())
        try:
            assert PAUSE.reached.wait(WAIT_S)
            table.put("k", new)
        finally:
            PAUSE.go_on.set()
        assert read_answer(descriptor, answer.result(WAIT_S)) == old


@pytest.mark.parametrize("move", ["seal", "finalize", "rollback"])
def test_layers_do_not_move_in_the_middle_of_a_committed_answer(heap: StateBackend, move: str) -> None:
    """The answer's keys are of one epoch: what moves the layers has to wait for the read that began before."""
    table = heap.table(VALUE)
    table.put_many(["j", "k"], [1, 1])
    list(heap.commit(0))
    heap.begin(1)
    table.put_many(["j", "k"], [2, 2])
    if move == "finalize":
        list(heap.commit(1))
    moves: dict[str, Callable[[], object]] = {
        "seal": lambda: (list(heap.commit(1)), heap.finalize(1)),
        "finalize": lambda: heap.finalize(1),
        "rollback": lambda: (heap.rollback(), table.put_many(["j", "k"], [3, 3])),
    }
    reader = heap.reader(Isolation.COMMITTED)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(lambda: reader.get(VALUE, None, ["j", PausingKey("k", 1), "k"]))
        try:
            assert PAUSE.reached.wait(WAIT_S)
            moved = pool.submit(moves[move])
            # Without the lock it would be done at once; with it, it cannot be.
            assert not wait([moved], timeout=0.2).done
        finally:
            PAUSE.go_on.set()
        epoch, values = answer.result(WAIT_S)
        assert (epoch, values) == (0, [b"\x01"] * 3)
        moved.result(WAIT_S)
    assert reader.get(VALUE, None, ["j", "k"]).values == ([b"\x01"] * 2 if move == "rollback" else [b"\x02"] * 2)


def test_a_namespace_that_appears_in_the_middle_of_a_committed_answer_does_not_make_it_lie(heap: StateBackend) -> None:
    """Nothing as of epoch -1, or the value as of epoch 0, but not: nothing as of epoch 0."""
    reader = heap.reader(Isolation.COMMITTED)

    def first_epoch() -> None:
        heap.table(VALUE, "w").put("k", 1)
        list(heap.commit(0))
        heap.finalize(0)

    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(lambda: reader.get(VALUE, PausingKey("w", 1), ["k"]))
        try:
            assert PAUSE.reached.wait(WAIT_S)
            written = pool.submit(first_epoch)
            wait([written], timeout=0.2)
        finally:
            PAUSE.go_on.set()
        assert answer.result(WAIT_S) in [(-1, [None]), (0, [b"\x01"])]
        written.result(WAIT_S)
