"""States that a job writes and never reads, as a queryable sink does: they are told by queries and commits alone.

A backend may spare such a state what only a reading job needs, as the heap does; no test may show a difference.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from qstate.backends import ChangeOp, Isolation, StateBackend
from qstate.backends.heap.write_ahead import WriteAheadTable
from qstate.keys import Key, Namespace, decode_key
from tests.backends.factories import ALL_GROUPS, open_named
from tests.backends.states import VALUE, canonical, read_answer

#: The heap keeps such a state in layers of its own; a byte store shows that nothing depends on that.
NAMES = ("heap", "memory without cache")
WAIT_S = 30.0
#: So many that a read meets every step of a commit and of what follows it.
KEYS = [f"key-{number}" for number in range(12_000)]

# Few, so that the steps of one run meet; what keys can be is the matter of the layout's tests.
SOME_KEYS: list[Key] = ["a", b"a", 1, ("a", 1)]
NAMESPACES: list[Namespace] = [None, ("w", 7)]

keys, namespaces = st.sampled_from(SOME_KEYS), st.sampled_from(NAMESPACES)
plain = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False), st.text(), st.binary())
values = st.one_of(plain, st.lists(plain, max_size=3), st.tuples(plain, plain), st.dictionaries(st.text(), plain))

#: (namespace, key) -> value
Model = dict[tuple[Namespace, Key], Any]


class WritingMachine(RuleBasedStateMachine):
    """What the job has written, what the last commit sealed, and what is final."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self._name = name
        self._opened = count()
        self.backend = self._open()
        self.backend.begin(0)
        self.epoch, self.final_epoch = 0, -1
        self.running: Model = {}
        self.sealed: Model = {}
        self.final: Model = {}
        #: What the running epoch wrote to.
        self.written: set[tuple[Namespace, Key]] = set()
        self.in_epoch = True

    def _open(self) -> StateBackend:
        backend = open_named(self._name, Path(self._scratch.name) / str(next(self._opened)))
        backend.table(VALUE)
        return backend

    def teardown(self) -> None:
        self.backend.close()
        self._scratch.cleanup()

    def _set(self, namespace: Namespace, key: Key, value: Any) -> None:
        self.written.add((namespace, key))
        if value is None:
            self.running.pop((namespace, key), None)
        else:
            self.running[namespace, key] = deepcopy(value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, pairs=st.lists(st.tuples(keys, plain), min_size=1))
    def put_many(self, namespace: Namespace, pairs: list[tuple[Key, Any]]) -> None:
        for key, value in pairs:
            self._set(namespace, key, value)
        self.backend.table(VALUE, namespace).put_many([key for key, _ in pairs], [value for _, value in pairs])

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, pairs=st.lists(st.tuples(keys, values), min_size=1))
    def put_many_of_any_sort(self, namespace: Namespace, pairs: list[tuple[Key, Any]]) -> None:
        self.put_many(namespace, pairs)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, value=values)
    def put(self, namespace: Namespace, key: Key, value: Any) -> None:
        self._set(namespace, key, value)
        self.backend.table(VALUE, namespace).put(key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys)
    def delete(self, namespace: Namespace, key: Key) -> None:
        self._set(namespace, key, None)
        self.backend.table(VALUE, namespace).delete(key)

    @precondition(lambda self: self.in_epoch)
    @rule()
    def commit(self) -> None:
        told = {}
        for change in self.backend.commit(self.epoch):
            assert change.op in (ChangeOp.PUT, ChangeOp.DELETE)
            where = (decode_key(change.namespace), decode_key(change.key))
            assert where not in told, "an entry is told twice"
            told[where] = VALUE.serializer.loads(change.data) if change.op is ChangeOp.PUT else None
        assert told.keys() <= self.written
        for where in self.written & (self.running.keys() | self.sealed.keys()):
            assert canonical(told[where]) == canonical(self.running.get(where)), where
        self.sealed = dict(self.running)
        self.written = set()
        self.in_epoch = False

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def finalize(self) -> None:
        self.backend.finalize(self.epoch)
        self.final, self.final_epoch = dict(self.sealed), self.epoch

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def begin(self) -> None:
        self.backend.begin(self.epoch + 1)
        self.final, self.final_epoch = dict(self.sealed), self.epoch
        self._next()

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def write_on_while_the_epoch_is_not_final(self) -> None:
        self._next()

    def _next(self) -> None:
        self.epoch += 1
        self.in_epoch = True

    @rule()
    def rollback(self) -> None:
        self.backend.rollback()
        self.running = dict(self.sealed)
        self.written = set()

    @rule(namespace=namespaces)
    def read_by_key_after_all(self, namespace: Namespace) -> None:
        get = self.backend.table(VALUE, namespace).get
        for key in SOME_KEYS:
            assert canonical(get(key)) == canonical(self.running.get((namespace, key)))

    @rule(namespace=namespaces)
    def spoil_gotten_objects_and_rollback(self, namespace: Namespace) -> None:
        get = self.backend.table(VALUE, namespace).get
        for found in map(get, SOME_KEYS):
            if isinstance(found, list):
                found.append("spoilt")
        self.rollback()

    @rule()
    def entries_are_the_last_commit(self) -> None:
        with self._open() as backend:
            backend.restore(0, list(self.backend.entries(ALL_GROUPS)))
            self._check_reads(backend, Isolation.LIVE, self.sealed)

    def _check_reads(self, backend: StateBackend, isolation: Isolation, model: Model) -> None:
        reader = backend.reader(isolation)
        for namespace in NAMESPACES:
            for asked in (SOME_KEYS, SOME_KEYS[:1]):
                for key, answer in zip(asked, reader.get(VALUE, namespace, asked).values, strict=True):
                    found = read_answer(VALUE, answer) if isinstance(answer, bytes) else answer
                    assert canonical(found) == canonical(model.get((namespace, key))), (isolation, namespace, key)

    @invariant()
    def queries_tell_what_was_written_and_what_is_final(self) -> None:
        self.backend.publish()
        self._check_reads(self.backend, Isolation.LIVE, self.running)
        self._check_reads(self.backend, Isolation.COMMITTED, self.final)
        assert self.backend.reader(Isolation.COMMITTED).get(VALUE, None, []).epoch == self.final_epoch


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_is_never_read_behaves_as_any_other(name: str) -> None:
    examples = settings().max_examples * (2 if "memory" in name or name == "heap" else 1)
    run_state_machine_as_test(lambda: WritingMachine(name), settings=settings(max_examples=examples))


#: What a job may do in an order that matters to a backend which spares such states something.
HISTORIES: dict[str, list[tuple[Any, ...]]] = {
    "one of many put again by itself, taken back": [
        ("put_many", None, [("a", 1), (1, 2)]),
        ("commit",),
        ("begin",),
        ("put_many", None, [("a", 3), (1, 4)]),
        ("put", None, "a", 5),
        ("rollback",),
    ],
    "one of many deleted, taken back": [
        ("put_many", None, [("a", 1), (1, 2)]),
        ("commit",),
        ("begin",),
        ("put_many", None, [("a", 3)]),
        ("delete", None, "a"),
        ("rollback",),
    ],
    "one of many deleted": [("put_many", None, [("a", 1), (1, 2)]), ("delete", None, "a"), ("commit",), ("begin",)],
    "many after a single one, and a single one after them": [
        ("put", None, "a", 1),
        ("put_many", None, [("a", 2), (1, 2)]),
        ("put", None, "a", 3),
        ("commit",),
        ("begin",),
    ],
    "many plain ones in place of what can change": [
        ("put", None, "a", [1]),
        ("commit",),
        ("begin",),
        ("put_many", None, [("a", 2)]),
        ("commit",),
        ("begin",),
        ("entries_are_the_last_commit",),
    ],
    "many that can change in place of plain ones": [
        ("put_many", None, [("a", 1), (1, 2)]),
        ("put_many", None, [("a", [1])]),
        ("commit",),
        ("begin",),
        ("put_many", None, [(1, [2])]),
        ("rollback",),
        ("entries_are_the_last_commit",),
    ],
    "many that are not final yet": [
        ("put_many", None, [("a", 1), (b"a", 1)]),
        ("commit",),
        ("entries_are_the_last_commit",),
        ("begin",),
        ("put_many", None, [("a", 2), (1, 2)]),
        ("commit",),
        ("entries_are_the_last_commit",),
    ],
    "many that are not final yet, and more taken back": [
        ("put_many", None, [("a", 1)]),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put_many", None, [(1, 2)]),
        ("rollback",),
        ("commit",),
        ("finalize",),
    ],
    "what can change is changed in place": [
        ("put_many", None, [("a", [1])]),
        ("commit",),
        ("spoil_gotten_objects_and_rollback", None),
        ("begin",),
        ("spoil_gotten_objects_and_rollback", None),
    ],
    "an epoch on another that is not final": [
        ("put_many", None, [("a", 1), (b"a", 1)]),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put_many", None, [("a", 2), (1, 2)]),
        ("commit",),
        ("entries_are_the_last_commit",),
        ("finalize",),
    ],
    "single ones on many that are not final": [
        ("put_many", None, [("a", 1), (b"a", 1)]),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put", None, "a", 2),
        ("rollback",),
        ("delete", None, "a"),
        ("commit",),
        ("finalize",),
    ],
    "many on single ones that are not final": [
        ("put", None, "a", 1),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put_many", None, [("a", 2), (1, 2)]),
        ("rollback",),
        ("put_many", None, [("a", 3)]),
        ("commit",),
        ("finalize",),
    ],
    "single ones on many on single ones, none final": [
        ("put", None, "a", 1),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put_many", None, [("a", 2), (1, 2)]),
        ("commit",),
        ("write_on_while_the_epoch_is_not_final",),
        ("put", None, "a", 3),
        ("rollback",),
        ("commit",),
        ("finalize",),
    ],
    "read by key in the middle": [
        ("put_many", None, [("a", 1), (b"a", 1)]),
        ("commit",),
        ("begin",),
        ("put_many", None, [("a", 2)]),
        ("read_by_key_after_all", None),
        ("put_many", None, [("a", 3), (1, 3)]),
        ("read_by_key_after_all", None),
        ("rollback",),
        ("read_by_key_after_all", None),
    ],
}


@pytest.mark.parametrize("history", list(HISTORIES))
@pytest.mark.parametrize("name", NAMES)
def test_histories_of_states_that_are_never_read(name: str, history: str) -> None:
    machine = WritingMachine(name)
    try:
        for step, *arguments in deepcopy(HISTORIES[history]):
            getattr(machine, step)(*arguments)
            machine.queries_tell_what_was_written_and_what_is_final()
    finally:
        machine.teardown()


def test_a_kept_get_of_a_table_reads_later_writes(backend: StateBackend) -> None:
    table = backend.table(VALUE)
    backend.begin(0)
    table.put_many(["a", "b"], [1, 1])
    list(backend.commit(0))
    backend.begin(1)
    get = table.get
    table.put_many(["b", "c"], [2, 2])
    assert [get(key) for key in "abcd"] == [1, 2, 2, None]


@pytest.mark.parametrize(
    "asked", [["a", "b"], ["c", "b"], ["a", "d"], ["d", "a", "a", "b", "c"], ["a"], ["d"], ["c"] * 20]
)
@pytest.mark.parametrize("final", [False, True])
def test_a_read_of_many_keys_finds_each_wherever_it_is(backend: StateBackend, asked: list[Key], final: bool) -> None:
    table = backend.table(VALUE)
    backend.begin(0)
    table.put_many(["a", "b"], [1, 1])
    list(backend.commit(0))
    if final:
        backend.finalize(0)
    backend.begin(1)
    table.put_many(["b", "c"], [2, 2])
    list(backend.commit(1))
    current = {"a": b"\x01", "b": b"\x02", "c": b"\x02"}
    assert backend.reader(Isolation.LIVE).get(VALUE, None, asked).values == [current.get(key) for key in asked]


# -- in the middle of what the heap does


class _Watched(dict[Any, Any]):
    """A dict that tells of each entry that is set, just after it."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._told()


def test_the_heap_shows_a_final_epoch_before_it_has_brought_it_to_the_live_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, seen = WriteAheadTable.settle, []

    def settle_after_a_look(table: WriteAheadTable) -> None:
        assert table.live == {}
        seen.append([backend.reader(isolation).get(VALUE, None, ["a", "b"]) for isolation in Isolation])
        settle(table)

    monkeypatch.setattr(WriteAheadTable, "settle", settle_after_a_look)
    with open_named("heap", tmp_path) as backend:
        backend.begin(0)
        backend.table(VALUE).put_many(["a"], [1])
        list(backend.commit(0))
        backend.finalize(0)
        assert seen == [[(0, [b"\x01", None])] * 2]


def test_the_heap_keeps_the_old_value_before_it_sets_the_new_one(tmp_path: Path) -> None:
    with open_named("heap", tmp_path) as backend:
        table, reader, looks = backend.table(VALUE), backend.reader(Isolation.COMMITTED), count()

        def look() -> None:
            next(looks)
            assert reader.get(VALUE, None, ["a", "b"]) == (-1, [None, None])

        assert isinstance(table, WriteAheadTable)
        table.live = _Watched(look)
        backend.begin(0)
        table.put_many(["a", "b"], [1, 1])
        list(backend.commit(0))
        table.put_many(["b"], [2])
        table.put("a", 3)  # brings both epochs to the live objects
        assert next(looks) == 4


# -- while other threads query


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def readers() -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads, and what ends them."""
    over = Event()
    with ThreadPoolExecutor(3) as pool:
        try:
            yield pool, over
        finally:
            over.set()


def _write(backend: StateBackend, epoch: int) -> None:
    """Set every key to the epoch's number, now by many keys, now by single ones, now by both."""
    table = backend.table(VALUE)
    whole, single = (KEYS, []) if epoch % 3 == 0 else (KEYS[:8000], KEYS[8000:]) if epoch % 3 == 1 else ([], KEYS)
    if whole:
        table.put_many(whole, [epoch] * len(whole))
    for key in single:
        table.put(key, epoch)


def test_queries_in_other_threads_never_go_back_nor_mix_epochs(
    tmp_path: Path, hasty: None, readers: tuple[ThreadPoolExecutor, Event]
) -> None:
    pool, over = readers

    def read_committed(backend: StateBackend) -> int:
        reader, latest = backend.reader(Isolation.COMMITTED), -1
        while not over.is_set():
            epoch, answers = reader.get(VALUE, None, KEYS)
            assert epoch >= latest
            assert {*answers} == {None if epoch < 0 else VALUE.serializer.dumps(epoch)}
            latest = epoch
        return latest

    def read_live(backend: StateBackend) -> int:
        reader, latest = backend.reader(Isolation.LIVE), [-1] * len(KEYS)
        while not over.is_set():
            answers = reader.get(VALUE, None, KEYS).values
            found = [-1 if answer is None else read_answer(VALUE, answer) for answer in answers]
            assert all(map(int.__le__, latest, found)), "a value went back"
            latest = found
        return min(latest)

    with open_named("heap", tmp_path) as backend:
        backend.table(VALUE)
        reading = [pool.submit(read_committed, backend), pool.submit(read_committed, backend)]
        reading.append(pool.submit(read_live, backend))
        for epoch in range(60):
            backend.begin(epoch)
            _write(backend, epoch)
            backend.publish()
            for _ in backend.commit(epoch):
                pass
            if epoch % 2:
                backend.finalize(epoch)
            ended = [future for future in reading if future.done()]
            assert not ended, [future.exception() for future in ended]
        over.set()
        assert all(future.result(WAIT_S) > 0 for future in reading)
