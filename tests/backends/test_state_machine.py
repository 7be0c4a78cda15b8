"""All kinds of state against a plain model: whatever a job does, every backend holds and tells what the model does."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from qstate.backends import Change, Isolation, StateBackend, StateTable
from qstate.descriptors import StateDescriptor, StateKind
from qstate.keys import Key, KeyGroupRange, Namespace
from tests.backends.factories import ALL_GROUPS, FACTORIES, MAX_PARALLELISM, open_named
from tests.backends.states import AGGREGATING, DESCRIPTORS, LIST, MAP, REDUCING, VALUE, canonical, read_answer

# Few, so that the steps of one run meet; what keys can be is the matter of the layout's tests.
KEYS: list[Key] = ["a", b"a", 1, ("a", 1)]
NAMESPACES: list[Namespace] = [None, ("w", 7)]
MAP_KEYS: list[Key] = ["", -1, ("m", -1)]

keys, namespaces, map_keys = st.sampled_from(KEYS), st.sampled_from(NAMESPACES), st.sampled_from(MAP_KEYS)
plain = st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False), st.text(), st.binary())
values = st.one_of(plain, st.lists(plain, max_size=3), st.tuples(plain, plain), st.dictionaries(st.text(), plain))
lists = st.lists(values, max_size=3)

#: (state's name, namespace, key) -> contents
Model = dict[tuple[str, Namespace, Key], Any]

_BY_NAME = {descriptor.name: descriptor for descriptor in DESCRIPTORS}


class BackendMachine(RuleBasedStateMachine):
    """Three models: what the job has written, what the last commit sealed, and what is final."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._scratch = tempfile.TemporaryDirectory()
        self._opened = 0
        self.backend = self._open()
        self.epoch = 0
        self.running: Model = {}
        self.sealed: Model = {}
        self.final: Model = {}
        self.final_epoch = -1
        self.log: list[Change] = []
        self.in_epoch = True
        self.backend.begin(0)

    def _open(self, key_groups: KeyGroupRange = ALL_GROUPS) -> StateBackend:
        self._opened += 1
        backend = open_named(self._name, Path(self._scratch.name) / str(self._opened), key_groups)
        for descriptor in DESCRIPTORS:
            backend.table(descriptor)
        return backend

    def teardown(self) -> None:
        self.backend.close()
        self._scratch.cleanup()

    def _set(self, descriptor: StateDescriptor, namespace: Namespace, key: Key, contents: Any) -> StateTable:
        if contents is None or (descriptor.kind in (StateKind.LIST, StateKind.MAP) and not contents):
            self.running.pop((descriptor.name, namespace, key), None)
        else:
            self.running[descriptor.name, namespace, key] = deepcopy(contents)
        return self.backend.table(descriptor, namespace)

    # -- what a job does in an epoch

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, value=values)
    def put(self, namespace: Namespace, key: Key, value: Any) -> None:
        self._set(VALUE, namespace, key, value).put(key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, pairs=st.lists(st.tuples(keys, plain)))
    def put_many(self, namespace: Namespace, pairs: list[tuple[Key, Any]]) -> None:
        for key, value in pairs:
            self._set(VALUE, namespace, key, value)
        self.backend.table(VALUE, namespace).put_many([key for key, _ in pairs], [value for _, value in pairs])

    @precondition(lambda self: self.in_epoch)
    @rule(descriptor=st.sampled_from(DESCRIPTORS), namespace=namespaces, key=keys)
    def delete(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> None:
        self._set(descriptor, namespace, key, None).delete(key)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, value=st.integers(-9, 9))
    def reduce(self, namespace: Namespace, key: Key, value: int) -> None:
        table = self.backend.table(REDUCING, namespace)
        total = (table.get(key) or 0) + value
        self._set(REDUCING, namespace, key, total)
        table.put(key, total)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, value=st.integers(-9, 9))
    def aggregate_in_place(self, namespace: Namespace, key: Key, value: int) -> None:
        table = self.backend.table(AGGREGATING, namespace)
        accumulator = AGGREGATING.aggregate_function.add(value, table.get(key) or [0.0, 0])
        self._set(AGGREGATING, namespace, key, accumulator)
        table.put(key, accumulator)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, element=plain)
    def change_a_value_in_place_and_put_it(self, namespace: Namespace, key: Key, element: Any) -> None:
        table = self.backend.table(VALUE, namespace)
        found = table.get(key)
        if isinstance(found, list):
            found.append(element)
            self._set(VALUE, namespace, key, found)
            table.put(key, found)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, elements=lists)
    def list_add(self, namespace: Namespace, key: Key, elements: list[Any]) -> None:
        old = self.running.get((LIST.name, namespace, key), [])
        self._set(LIST, namespace, key, [*old, *elements]).list_add(key, elements)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, elements=lists)
    def list_put(self, namespace: Namespace, key: Key, elements: list[Any]) -> None:
        self._set(LIST, namespace, key, elements).put(key, elements)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys)
    def drop_the_oldest_element_in_place_and_put_the_list(self, namespace: Namespace, key: Key) -> None:
        table = self.backend.table(LIST, namespace)
        found = table.get(key)
        if found:
            del found[0]
            self._set(LIST, namespace, key, found)
            table.put(key, found)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, map_key=map_keys, value=values)
    def map_put(self, namespace: Namespace, key: Key, map_key: Key, value: Any) -> None:
        old = self.running.get((MAP.name, namespace, key), {})
        self._set(MAP, namespace, key, {**old, map_key: value}).map_put(key, map_key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, map_key=map_keys)
    def map_remove(self, namespace: Namespace, key: Key, map_key: Key) -> None:
        rest = dict(self.running.get((MAP.name, namespace, key), {}))
        rest.pop(map_key, None)
        self._set(MAP, namespace, key, rest).map_remove(key, map_key)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=namespaces, key=keys, entries=st.dictionaries(map_keys, values, max_size=3))
    def map_put_whole(self, namespace: Namespace, key: Key, entries: dict[Key, Any]) -> None:
        self._set(MAP, namespace, key, entries).put(key, entries)

    @rule()
    def publish(self) -> None:
        self.backend.publish()

    # -- epochs

    @precondition(lambda self: self.in_epoch)
    @rule()
    def commit(self) -> None:
        self.log.extend(self.backend.commit(self.epoch))
        self.sealed = deepcopy(self.running)
        self.in_epoch = False

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def finalize(self) -> None:
        self.backend.finalize(self.epoch)
        self.final, self.final_epoch = deepcopy(self.sealed), self.epoch

    @precondition(lambda self: not self.in_epoch)
    @rule()
    def begin(self) -> None:
        self.backend.begin(self.epoch + 1)
        self.final, self.final_epoch = deepcopy(self.sealed), self.epoch
        self.epoch += 1
        self.in_epoch = True

    @rule()
    def rollback(self) -> None:
        self.backend.rollback()
        self.running = deepcopy(self.sealed)

    @rule()
    def spoil_gotten_objects_and_rollback(self) -> None:
        """A function that fails between changing what it got and putting it leaves no trace."""
        for name, namespace, key in self.running:
            found = self.backend.table(_BY_NAME[name], namespace).get(key)
            if isinstance(found, list | dict):
                found.clear()
        self.rollback()

    @precondition(lambda self: not self.in_epoch and self.log)
    @rule(by_entries=st.booleans(), cut=st.integers(1, MAX_PARALLELISM - 1))
    def restore_elsewhere(self, by_entries: bool, cut: int) -> None:
        """The log of changes, or the entries, build the same state in new backends that share the key groups."""
        halves = [self._open(KeyGroupRange(0, cut)), self._open(KeyGroupRange(cut, MAX_PARALLELISM))]
        for backend in halves:
            backend.restore(self.epoch, list(self.backend.entries(ALL_GROUPS)) if by_entries else self.log)
        found: Model = {}
        for backend in halves:
            part = self._contents(backend)
            assert not part.keys() & found.keys(), "a key is in two halves"
            found.update(part)
            self._check_reads(backend, Isolation.COMMITTED, part)
            backend.close()
        _same(found, self.sealed)

    # -- what must hold at any time

    def _contents(self, backend: StateBackend) -> Model:
        found = {}
        for descriptor in DESCRIPTORS:
            for namespace in NAMESPACES:
                table = backend.table(descriptor, namespace)
                for key in KEYS:
                    contents = table.get(key)
                    if contents is not None:
                        found[descriptor.name, namespace, key] = contents
        return found

    def _check_reads(self, backend: StateBackend, isolation: Isolation, model: Model) -> None:
        reader = backend.reader(isolation)
        for descriptor in DESCRIPTORS:
            for namespace in NAMESPACES:
                for key, answer in zip(KEYS, reader.get(descriptor, namespace, KEYS).values, strict=True):
                    expected = model.get((descriptor.name, namespace, key))
                    if descriptor is AGGREGATING and expected is not None:
                        expected = AGGREGATING.aggregate_function.get_result(expected)
                    found = read_answer(descriptor, answer) if isinstance(answer, bytes) else answer
                    assert canonical(found) == canonical(expected), (descriptor.name, namespace, key)

    @rule()
    def tables_hold_what_the_job_wrote(self) -> None:
        _same(self._contents(self.backend), self.running)
        for (name, namespace, key), contents in self.running.items():
            if name == MAP.name:
                table = self.backend.table(MAP, namespace)
                assert canonical(dict(table.map_items(key))) == canonical(contents)
                for map_key in MAP_KEYS:
                    assert canonical(table.map_get(key, map_key)) == canonical(contents.get(map_key))

    @rule()
    def live_queries_tell_what_the_job_published(self) -> None:
        self.backend.publish()
        self._check_reads(self.backend, Isolation.LIVE, self.running)

    @rule()
    def entries_are_the_last_commit(self) -> None:
        backend = self._open()
        backend.restore(0, list(self.backend.entries(ALL_GROUPS)))
        _same(self._contents(backend), self.sealed)
        backend.close()

    @invariant()
    def committed_queries_tell_the_final_epoch(self) -> None:
        reader = self.backend.reader(Isolation.COMMITTED)
        assert reader.get(VALUE, None, []).epoch == self.final_epoch
        self._check_reads(self.backend, Isolation.COMMITTED, self.final)


def _same(found: Model, expected: Model) -> None:
    for where in found.keys() | expected.keys():
        assert canonical(found.get(where)) == canonical(expected.get(where)), where


@pytest.mark.parametrize("name", list(FACTORIES))
def test_every_backend_behaves_as_the_model(name: str) -> None:
    # The in-memory ones are quick, so they search further.
    examples = settings().max_examples * (2 if "memory" in name or name == "heap" else 1)
    run_state_machine_as_test(lambda: BackendMachine(name), settings=settings(max_examples=examples))
