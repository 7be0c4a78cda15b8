"""Laws of scans: every key of a state, in one order that all backends have, of one epoch from begin to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given

from qstate.backends import Capability, Isolation, Scanned, Selection, StateBackend, StateScan
from qstate.descriptors import StateDescriptor, TimerDescriptor
from qstate.errors import ClosedError, FailureCode
from qstate.keys import DEFAULT_MAX_PARALLELISM, Key, KeyGroupRange, Namespace, encode_key, key_group
from qstate_conformance.backend.contents import answered, read_answer
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import AGGREGATING, KINDS, LIST, MAP, STATES, VALUE, numbered
from qstate_conformance.backend.strategies import programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_LIVE, _COMMITTED = Isolation.LIVE, Isolation.COMMITTED
_SCANS, _BOTH = [Capability.SCANS], [Capability.SCANS, Capability.COMMITTED_READS]
_GROUPS = range(DEFAULT_MAX_PARALLELISM)
_EVERY = Selection()

#: For each key group, what a scan has to visit: the encoded namespace and key, and the contents.
Expected = dict[int, list[tuple[bytes, bytes, Any]]]


def expected_of(model: Model, name: str) -> Expected:
    """What a scan of a state has to visit, by key group and in order."""
    found: Expected = {}
    for (state, namespace, key), contents in model.entries.items():
        if state == name:
            group = key_group(key, DEFAULT_MAX_PARALLELISM)
            place = (encode_key(namespace), encode_key(key), answered(contents, STATES[name]))
            found.setdefault(group, []).append(place)
    return {group: sorted(places, key=lambda place: place[:2]) for group, places in found.items()}


def states_of(model: Model) -> list[StateDescriptor]:
    """Every kind of state, and those that the model has entries of."""
    named = {state.name: state for state in KINDS}
    for name, _, _ in model.entries:
        if not isinstance(STATES[name], TimerDescriptor):
            named[name] = STATES[name]
    return list(named.values())


def check_visit(found: Iterable[Scanned], expected: list[tuple[bytes, bytes, Any]], state: StateDescriptor) -> None:
    """A visit gave these places, in order, and the answers that a get gives."""
    visited = list(found)
    assert [entry[:2] for entry in visited] == [place[:2] for place in expected], state.name
    for entry, (_, key, contents) in zip(visited, expected, strict=True):
        read = read_answer(state, entry.value) if isinstance(entry.value, bytes) else entry.value
        check_same(read, contents, f"the value of {key!r} in a scan of {state.name}")


def check_scan(scan: StateScan, expected: Expected, state: StateDescriptor) -> None:
    """A scan visits what the model holds, in every key group."""
    for group in _GROUPS:
        check_visit(scan.entries(group, None, _EVERY), expected.get(group, []), state)


@law("N1", "N2", "N3", proves=_BOTH)
@given(program=programs(epochs=3), rest=programs(epochs=1))
def test_a_committed_scan_shows_one_epoch(
    subject: BackendSubject, program: list[list[Write]], rest: list[list[Write]]
) -> None:
    """A scan shows the epoch that was final when it began, while a later one is written, rolled back and committed."""
    final = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, final)
            sealed(backend, epoch)
        last = len(program) - 1
        backend.finalize(last)
        later = final.copy()
        scans = {state: backend.reader(_COMMITTED).scan(state) for state in states_of(final)}
        backend.begin(last + 1)
        for writes in rest:
            apply(writes, backend, later)
        backend.publish()
        backend.rollback()
        backend.begin(last + 1)
        for writes in rest:
            apply(writes, backend, Model())
        sealed(backend, last + 1)
        backend.finalize(last + 1)
        for state, scan in scans.items():
            assert scan.epoch == last
            check_scan(scan, expected_of(final, state.name), state)
            scan.close()
            scan.close()


@law("N1", "N2", "N4", proves=_SCANS)
@given(program=programs(epochs=2))
def test_a_live_scan_shows_what_is_published(subject: BackendSubject, program: list[list[Write]]) -> None:
    """Without writes meanwhile, a live scan visits every key that was published, with the answer of a live get."""
    model = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            backend.publish()
            for state in states_of(model):
                scan = backend.reader(_LIVE).scan(state)
                assert scan.epoch == epoch
                check_scan(scan, expected_of(model, state.name), state)
                scan.close()
            sealed(backend, epoch)


def _filled(backend: StateBackend, state: StateDescriptor, keys: Iterable[tuple[Namespace, Key]]) -> Model:
    model = Model()
    for number, (namespace, key) in enumerate(keys):
        contents = numbered(state, number + 1)
        backend.table(state, namespace).put(key, contents)
        model.put((state.name, namespace, key), contents)
    sealed(backend, 0)
    backend.finalize(0)
    return model


_PLACES: list[tuple[Namespace, Key]] = [
    (space, key)
    for space in (None, "w", ("w", 7), 7)
    for key in ("", "a", "ab", "b", "x" * 40, ("a", 1), ("a", 2), ("b", 1))
]


@law("N1", needs=_SCANS)
def test_a_scan_goes_on_after_any_place(subject: BackendSubject) -> None:
    """A visit after a place has what comes after it in the order, whether something is stored there or not."""
    others: list[Key] = ["", "aa", "~", ("a", 0), ("c", 1), 5]
    for state in KINDS:
        with opened(subject) as backend:
            model = _filled(backend, state, _PLACES)
            scan = backend.reader(_LIVE).scan(state)
            for group, places in expected_of(model, state.name).items():
                for namespace, key, _ in places:
                    for after in [(namespace, key), *((namespace, encode_key(other)) for other in others)]:
                        rest = [place for place in places if place[:2] > after]
                        check_visit(scan.entries(group, after, _EVERY), rest, state)
            scan.close()


@law("N1", needs=_SCANS)
def test_a_scan_visits_the_selected_keys(subject: BackendSubject) -> None:
    """A selection of a namespace, of a prefix of the encoded keys, or of both visits these keys and no others."""
    prefixes = [b"", b"\xa1", encode_key("a"), encode_key(("a", 1))[:-1], b"\xff"]
    for state in KINDS:
        with opened(subject) as backend:
            expected = expected_of(_filled(backend, state, _PLACES), state.name)
            scan = backend.reader(_LIVE).scan(state)
            for namespace in (None, encode_key(None), encode_key("w"), encode_key("other")):
                for prefix in prefixes:
                    for group in _GROUPS:
                        wanted = [
                            place
                            for place in expected.get(group, [])
                            if namespace in (None, place[0]) and place[1].startswith(prefix)
                        ]
                        check_visit(scan.entries(group, None, Selection(namespace, prefix)), wanted, state)
            scan.close()


@law("N1", needs=_SCANS)
def test_a_scan_of_keys_reads_no_values(subject: BackendSubject) -> None:
    """With `values=False` the same keys are visited, and the value of each is None."""
    for state in KINDS:
        with opened(subject) as backend:
            expected = expected_of(_filled(backend, state, _PLACES), state.name)
            scan = backend.reader(_LIVE).scan(state)
            for group in _GROUPS:
                found = list(scan.entries(group, None, Selection(values=False)))
                assert [tuple(entry) for entry in found] == [(*place[:2], None) for place in expected.get(group, [])]
            scan.close()


@law("N5", needs=_SCANS)
def test_a_value_that_is_too_large_ends_no_scan(subject: BackendSubject) -> None:
    """A value over `most_bytes` is TOO_LARGE in its place; the visit goes on."""
    large = {VALUE: "x" * 1000, LIST: ["x" * 500] * 2, MAP: {"a": "x" * 500, "b": "x" * 500}}
    for state, contents in large.items():
        small: Any = {VALUE: "s", LIST: ["s"], MAP: {"a": "s"}}[state]
        with opened(subject) as backend:
            keys: list[Key] = [f"k{number}" for number in range(8)]
            for number, key in enumerate(keys):
                backend.table(state).put(key, contents if number % 2 else small)
            sealed(backend, 0)
            scan = backend.reader(_LIVE).scan(state)
            found = {
                entry.key: entry.value
                for group in _GROUPS
                for entry in scan.entries(group, None, Selection(most_bytes=100))
            }
            scan.close()
            for number, key in enumerate(keys):
                value = found[encode_key(key)]
                assert (value is FailureCode.TOO_LARGE) == bool(number % 2), (state.name, key, value)


@law("N2", needs=_SCANS)
def test_one_bad_value_spoils_no_scan(subject: BackendSubject) -> None:
    """A result that cannot be computed is a failure in its place; the visit goes on."""
    with opened(subject) as backend:
        table = backend.table(AGGREGATING)
        for number in range(6):
            table.put(f"k{number}", [1.0, number % 2])  # the mean of none divides by zero
        sealed(backend, 0)
        scan = backend.reader(_LIVE).scan(AGGREGATING)
        found = {entry.key: entry.value for group in _GROUPS for entry in scan.entries(group, None, _EVERY)}
        scan.close()
        for number in range(6):
            value = found[encode_key(f"k{number}")]
            assert isinstance(value, FailureCode if number % 2 == 0 else bytes)


@law("N1", needs=_SCANS)
def test_a_scan_of_a_state_without_values_visits_nothing(subject: BackendSubject) -> None:
    """A state without entries has no keys to visit, before and after it had some."""
    with opened(subject) as backend:
        for state in KINDS:
            assert not any(list(backend.reader(_LIVE).scan(state).entries(group, None, _EVERY)) for group in _GROUPS)
            backend.table(state).put("k", numbered(state, 1))
            backend.table(state).delete("k")
        backend.publish()
        for state in KINDS:
            scan = backend.reader(_LIVE).scan(state)
            assert not any(list(scan.entries(group, None, _EVERY)) for group in _GROUPS)
            scan.close()


@law("N3", needs=_BOTH)
def test_a_committed_scan_shows_restored_state(subject: BackendSubject) -> None:
    """A backend that was restored shows that state, as of the epoch that it was restored to, of its own key groups."""
    with Instances(subject) as instances:
        whole = instances.open()
        whole.begin(0)
        model = _filled(whole, VALUE, _PLACES)
        half = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM // 2)
        backend = instances.restored(4, list(whole.entries(half)), half)
        scan = backend.reader(_COMMITTED).scan(VALUE)
        assert scan.epoch == 4
        for group, places in expected_of(model, VALUE.name).items():
            if group in half:
                check_visit(scan.entries(group, None, _EVERY), places, VALUE)
        scan.close()


@law("N6", needs=_SCANS)
def test_a_scan_of_a_closed_backend_crashes_nothing(subject: BackendSubject) -> None:
    """After `close` of the backend an open scan raises `ClosedError` or visits as before."""
    with opened(subject) as backend:
        expected = expected_of(_filled(backend, VALUE, _PLACES), VALUE.name)
        scans = [backend.reader(isolation).scan(VALUE) for isolation in _isolations(subject)]
        backend.close()
        for scan in scans:
            try:
                for group in _GROUPS:
                    found = [tuple(entry[:2]) for entry in scan.entries(group, None, _EVERY)]
                    assert found in ([], [place[:2] for place in expected.get(group, [])])
            except ClosedError:
                pass
            scan.close()


def _isolations(subject: BackendSubject) -> list[Isolation]:
    return [_LIVE, _COMMITTED] if Capability.COMMITTED_READS in subject.capabilities else [_LIVE]
