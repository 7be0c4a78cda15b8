"""A job's whole life against the model, in any order that hypothesis thinks of.

Rules of this module: it drives one backend, and others that are restored from it, and keeps three models: what the job
has written, what the last commit sealed, and what is final. It judges by the contract only.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qstate.backends import Capability, Change, Isolation, StateBackend, Timer
from qstate.keys import Key, KeyGroupRange, Namespace, key_group
from qstate_conformance.backend.contents import check_reads, check_tables, query
from qstate_conformance.backend.instances import Instances
from qstate_conformance.backend.model import Model, Place, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import (
    AGGREGATING,
    FRAMED_LIST,
    KINDS,
    LIST,
    MAP,
    REDUCING,
    TIMERS,
    TWIN,
    TWIN_TIMERS,
    VALUE,
)
from qstate_conformance.backend.strategies import elements, map_values, times, values
from qstate_conformance.backend.timers import check_timers, take_from_model
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.subjects import ALL, BackendSubject

__all__ = ["BackendMachine"]

# Few, so that the steps of one run meet; what keys can be is the matter of other laws.
_KEYS: list[Key] = ["a", b"a", 1, ("a", 1)]
_NAMESPACES: list[Namespace] = [None, ("w", 7)]
_MAP_KEYS: list[Key] = ["", -1, ("m", -1)]
_STATES = (*KINDS, TWIN, FRAMED_LIST)
_PLACES: list[Place] = [(state.name, space, key) for state in _STATES for space in _NAMESPACES for key in _KEYS]

_keys, _namespaces, _map_keys = st.sampled_from(_KEYS), st.sampled_from(_NAMESPACES), st.sampled_from(_MAP_KEYS)
_value_states = st.sampled_from([VALUE.name, TWIN.name])
_timers = st.sampled_from([TIMERS, TWIN_TIMERS])
_list_states = st.sampled_from([LIST.name, FRAMED_LIST.name])


class BackendMachine(RuleBasedStateMachine):
    """One run: a backend from its opening to its end, through restarts."""

    def __init__(self, subject: BackendSubject) -> None:
        super().__init__()
        self._resources = ExitStack()
        self._instances = self._resources.enter_context(Instances(subject))
        self._reads_committed = Capability.COMMITTED_READS in subject.capabilities
        self.backend = self._instances.open()
        self.epoch, self.in_epoch = 0, True
        self.running, self.sealed, self.final = Model(), Model(), Model()
        self.sealed_epoch = self.final_epoch = -1
        self.log: list[Change] = []
        self.backend.begin(0)

    def teardown(self) -> None:
        self._resources.close()

    def _write(self, operation: str, state: str, namespace: Namespace, key: Key, *arguments: Any) -> None:
        apply([Write(operation, state, namespace, key, arguments)], self.backend, self.running)

    # -- what a job does in an epoch

    @precondition(lambda self: self.in_epoch)
    @rule(state=_value_states, namespace=_namespaces, key=_keys, value=values)
    def put(self, state: str, namespace: Namespace, key: Key, value: Any) -> None:
        self._write("put", state, namespace, key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, pairs=st.lists(st.tuples(_keys, values), min_size=1, max_size=5))
    def put_many(self, namespace: Namespace, pairs: list[tuple[Key, Any]]) -> None:
        keys, contents = [key for key, _ in pairs], [value for _, value in pairs]
        self._write("put_many", VALUE.name, namespace, keys[0], keys, contents)

    @precondition(lambda self: self.in_epoch)
    @rule(state=st.sampled_from(_STATES), namespace=_namespaces, key=_keys)
    def delete(self, state: Any, namespace: Namespace, key: Key) -> None:
        self._write("delete", state.name, namespace, key)

    @precondition(lambda self: self.in_epoch)
    @rule(state=st.sampled_from([VALUE, LIST, MAP]), namespace=_namespaces, key=_keys, value=values)
    def change_in_place(self, state: Any, namespace: Namespace, key: Key, value: Any) -> None:
        self._write("change_in_place", state.name, namespace, key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, key=_keys, value=st.integers(-9, 9))
    def reduce(self, namespace: Namespace, key: Key, value: int) -> None:
        total = (self.backend.table(REDUCING, namespace).get(key) or 0) + value
        self._write("put", REDUCING.name, namespace, key, total)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, key=_keys, value=st.integers(-9, 9))
    def aggregate_in_place(self, namespace: Namespace, key: Key, value: int) -> None:
        table, function = self.backend.table(AGGREGATING, namespace), AGGREGATING.aggregate_function
        accumulator = function.add(value, table.get(key) or function.create_accumulator())
        table.put(key, accumulator)
        self.running.put((AGGREGATING.name, namespace, key), accumulator)

    @precondition(lambda self: self.in_epoch)
    @rule(state=_list_states, namespace=_namespaces, key=_keys, added=elements, whole=st.booleans())
    def write_a_list(self, state: str, namespace: Namespace, key: Key, added: list[Any], whole: bool) -> None:
        self._write("put" if whole else "list_add", state, namespace, key, added)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, key=_keys, map_key=_map_keys, value=map_values)
    def map_put(self, namespace: Namespace, key: Key, map_key: Key, value: Any) -> None:
        self._write("map_put", MAP.name, namespace, key, map_key, value)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, key=_keys, map_key=_map_keys)
    def map_remove(self, namespace: Namespace, key: Key, map_key: Key) -> None:
        self._write("map_remove", MAP.name, namespace, key, map_key)

    @precondition(lambda self: self.in_epoch)
    @rule(namespace=_namespaces, key=_keys, entries=st.dictionaries(_map_keys, map_values, max_size=3))
    def put_a_map(self, namespace: Namespace, key: Key, entries: dict[Key, Any]) -> None:
        self._write("put", MAP.name, namespace, key, entries)

    @precondition(lambda self: self.in_epoch)
    @rule(timers=_timers, namespace=_namespaces, key=_keys, time=times, removed=st.booleans())
    def add_or_remove_a_timer(self, timers: Any, namespace: Namespace, key: Key, time: int, removed: bool) -> None:
        self._write("remove" if removed else "add", timers.name, namespace, key, time)

    @precondition(lambda self: self.in_epoch)
    @rule(timers=_timers, upto=times, limit=st.integers(1, 4))
    def take_timers(self, timers: Any, upto: int, limit: int) -> None:
        found: list[Timer] = self.backend.timers(timers).take(upto, limit)
        check_same(found, take_from_model(self.running, upto, limit, timers))

    @rule()
    def publish(self) -> None:
        self.backend.publish()

    # -- epochs

    @precondition(lambda self: self.in_epoch)
    @rule()
    def commit(self) -> None:
        self.log.extend(self.backend.commit(self.epoch))
        self.sealed, self.sealed_epoch = self.running.copy(), self.epoch
        self.in_epoch = False

    @precondition(lambda self: not self.in_epoch and self.sealed_epoch >= 0)
    @rule()
    def finalize(self) -> None:
        self.backend.finalize(self.sealed_epoch)
        self.final, self.final_epoch = self.sealed, self.sealed_epoch

    @precondition(lambda self: not self.in_epoch)
    @rule(skipped=st.integers(0, 2))
    def begin(self, skipped: int) -> None:
        self.epoch = self.sealed_epoch + 1 + skipped
        self.backend.begin(self.epoch)
        self.final, self.final_epoch = self.sealed, self.sealed_epoch
        self.in_epoch = True

    @rule(spoiled=st.booleans())
    def rollback(self, spoiled: bool) -> None:
        """A function that failed may have changed in place what it got, and not put it."""
        if spoiled:
            self._spoil()
        self.backend.rollback()
        self.running = self.sealed.copy()
        self.in_epoch = False

    def _spoil(self) -> None:
        tables = {state.name: state for state in _STATES}
        for name, namespace, key in self.running.entries:
            if name not in tables:
                continue
            found = self.backend.table(tables[name], namespace).get(key)
            if isinstance(found, list | dict):
                found.clear()

    # -- restarts and rescaling

    @precondition(lambda self: self.log)
    @rule(by_entries=st.booleans())
    def fail_over(self, by_entries: bool) -> None:
        """The process is lost. Another one continues from the log, or from a snapshot of the last commit."""
        changes = list(self.backend.entries(ALL)) if by_entries else self.log
        self.backend.close()
        self.backend = self._instances.restored(self.sealed_epoch, changes)
        self.log = list(changes)
        self.running, self.final, self.final_epoch = self.sealed.copy(), self.sealed, self.sealed_epoch
        self.in_epoch = False

    @precondition(lambda self: self.sealed_epoch >= 0)
    @rule(cut=st.integers(1, 127), other_cut=st.integers(1, 127))
    def rescale_there_and_back(self, cut: int, other_cut: int) -> None:
        """Two instances share the state, two others with another border take it over; each entry is in one of them."""
        halves = self._halves(cut, list(self.backend.entries(ALL)))
        parts = [change for half in halves for change in half.entries(ALL)]
        for groups, half in zip(_ranges(other_cut), self._halves(other_cut, parts), strict=True):
            mine = {place: value for place, value in self.sealed.entries.items() if key_group(place[2], 128) in groups}
            check_tables(half, Model(mine), _PLACES)
            check_timers(half, Model(mine), self.sealed_epoch + 1)
            half.close()
        for half in halves:
            half.close()

    def _halves(self, cut: int, changes: list[Change]) -> list[StateBackend]:
        return [self._instances.restored(self.sealed_epoch, changes, groups) for groups in _ranges(cut)]

    # -- what must hold

    @rule()
    def tables_hold_what_the_job_wrote(self) -> None:
        check_tables(self.backend, self.running, _PLACES)

    @rule()
    def live_queries_tell_what_was_published(self) -> None:
        self.backend.publish()
        check_reads(self.backend, Isolation.LIVE, self.running, _PLACES)

    @rule()
    def entries_are_the_last_commit(self) -> None:
        check_same(_read_out(self.backend.entries(ALL)).entries, self.sealed.entries)

    @rule()
    def the_log_is_the_last_commit(self) -> None:
        check_same(_read_out(self.log).entries, self.sealed.entries)

    @invariant()
    def committed_queries_tell_the_final_epoch(self) -> None:
        if self._reads_committed:
            assert query(self.backend, Isolation.COMMITTED, VALUE, [])[0] == self.final_epoch
            check_reads(self.backend, Isolation.COMMITTED, self.final, _PLACES)


def _ranges(cut: int) -> list[KeyGroupRange]:
    return [KeyGroupRange(0, cut), KeyGroupRange(cut, 128)]


def _read_out(changes: Any) -> Model:
    replica = Replica()
    replica.load(changes)
    return replica.model()
