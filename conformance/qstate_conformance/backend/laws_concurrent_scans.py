"""Laws of concurrent scans: keys are visited while the one writer writes, commits, finalizes and rolls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from qstate.backends import Capability, Isolation, Scanned, Selection, StateBackend, StateScan
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.keys import DEFAULT_MAX_PARALLELISM, Key, Namespace, encode_key, key_group
from qstate.serializers import MessagePackSerializer, Serializer
from qstate_conformance.backend.contents import read_answer
from qstate_conformance.backend.instances import opened, sealed
from qstate_conformance.backend.schedules import WAIT_S, Readers, tiny_switch_interval
from qstate_conformance.backend.states import LIST, MAP, VALUE
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_KINDS: tuple[StateDescriptor, ...] = (VALUE, LIST, MAP)
_LIVE, _COMMITTED = Isolation.LIVE, Isolation.COMMITTED
_EVERY = Selection()
_SCANS, _BOTH = [Capability.SCANS], [Capability.SCANS, Capability.COMMITTED_READS]
#: Some groups, with several keys each: a visit of all 128 of them would take longer than many epochs.
_GROUPS = range(4)
_EPOCHS = 24
#: How long a rollback waits for a scan, which may wait for the rollback.
_BLOCKED_S = 1.0
Place = tuple[bytes, bytes]


def _keys_of(groups: range, each: int) -> Iterator[Key]:
    """So many keys of each of the groups."""
    wanted = dict.fromkeys(groups, each)
    number = 0
    while any(wanted.values()):
        key = f"k{number}"
        number += 1
        group = key_group(key, DEFAULT_MAX_PARALLELISM)
        if wanted.get(group):
            wanted[group] -= 1
            yield key


_FOUND = list(_keys_of(_GROUPS, 16))
#: Keys of which one more has a value in each epoch.
_GROWING, _FOUND = _FOUND[36:], _FOUND[:36]
#: Places that have a value all the time, and keys that come and go.
_STABLE: list[tuple[Namespace, Key]] = [(space, key) for space in (None, "w") for key in _FOUND[::3]]
_PASSING = [key for key in _FOUND if key not in _FOUND[::3]]


def _passing(epoch: int) -> list[Key]:
    """The keys that have a value in this epoch, and none in the next one."""
    return _PASSING[epoch % 3 :: 3]


def _contents(state: StateDescriptor, number: int) -> Any:
    return {"value": number, "list": [number, number], "map": {"one": number, f"other {number % 3}": number}}[
        state.kind.value
    ]


def _write(backend: StateBackend, epoch: int, number: int) -> None:
    """Everything says this number; keys that passed go, others come. In between are moments that no epoch shows."""
    for state in _KINDS:
        for space in (None, "w", f"w{epoch % 2}"):
            table = backend.table(state, space)
            for key in _passing(epoch - 1):
                table.put(key, _contents(state, -1))
                table.delete(key)
            for key in [*_passing(epoch), *(key for where, key in _STABLE if where == space)]:
                table.put(key, _contents(state, -1))
        backend.publish()
        for space in (None, "w", f"w{epoch % 2}", f"w{(epoch + 1) % 2}"):
            table = backend.table(state, space)
            if space == f"w{(epoch + 1) % 2}":
                for key in _passing(epoch - 1):
                    table.delete(key)
                continue
            for key in [*_passing(epoch), *(key for where, key in _STABLE if where == space)]:
                table.put(key, _contents(state, number))


def _expected(epoch: int) -> list[Place]:
    """What a scan of the groups visits as of an epoch, in order."""
    places = [*_STABLE, *((space, key) for space in (None, "w", f"w{epoch % 2}") for key in _passing(epoch))]
    return [place[1:] for place in sorted(map(_placed, places))]


def _placed(place: tuple[Namespace, Key]) -> tuple[int, bytes, bytes]:
    space, key = place
    return key_group(key, DEFAULT_MAX_PARALLELISM), encode_key(space), encode_key(key)


def _visited(scan: StateScan) -> list[Scanned]:
    return [entry for group in _GROUPS for entry in scan.entries(group, None, _EVERY)]


def _numbers(state: StateDescriptor, entry: Scanned) -> set[Any]:
    """Every number that a value says."""
    found = read_answer(state, entry.value) if isinstance(entry.value, bytes) else entry.value
    if isinstance(found, list | dict):
        return set(found.values() if isinstance(found, dict) else found)
    return {found}


def _grow(backend: StateBackend, epoch: int) -> Key:
    """Publish one more key of each state, which stays."""
    key = _GROWING[epoch]
    for state in _KINDS:
        backend.table(state).put(key, _contents(state, epoch))
    backend.publish()
    return key


def _run_epochs(backend: StateBackend, readers: Readers, more: Callable[[int], object] = lambda epoch: None) -> None:
    """Epochs of which some fail and are tried again, and some are final only when the next one begins."""
    for epoch in range(1, _EPOCHS):
        backend.begin(epoch)
        if epoch % 3 == 2:
            _write(backend, epoch, 10_000)
            backend.rollback()
            backend.begin(epoch)
        more(epoch)
        _write(backend, epoch, epoch)
        sealed(backend, epoch)
        if epoch % 2:
            backend.finalize(epoch)
        readers.one_more()


@law("N3", "N1", needs=_BOTH)
def test_a_committed_scan_is_of_one_final_epoch_however_threads_interleave(subject: BackendSubject) -> None:
    """A committed scan has exactly the keys and values of its epoch, and that never goes back, whatever is written."""
    with opened(subject) as backend:
        _write(backend, 0, 0)
        sealed(backend, 0)
        backend.finalize(0)

        def read(state: StateDescriptor) -> Callable[[], None]:
            reader, last = backend.reader(_COMMITTED), [-1]

            def check() -> None:
                scan = reader.scan(state)
                found = _visited(scan)
                scan.close()
                assert scan.epoch >= last[0], f"the epoch of scans went back from {last[0]} to {scan.epoch}"
                last[0] = scan.epoch
                assert [entry[:2] for entry in found] == _expected(scan.epoch), f"as of epoch {scan.epoch}"
                numbers = set().union(*(_numbers(state, entry) for entry in found))
                assert numbers == {scan.epoch}, f"as of epoch {scan.epoch}: {numbers}"

            return check

        with tiny_switch_interval(), Readers(*map(read, _KINDS)) as readers:
            _run_epochs(backend, readers)


@law("N4", "N1", "N2", needs=_SCANS)
def test_a_live_scan_misses_no_key_that_stays(subject: BackendSubject) -> None:
    """A live scan has each key that has a value from its begin to its end, once and in order."""
    grown: list[Key] = []
    known = {place for epoch in range(6) for place in _expected(epoch)}
    known |= {_placed((None, key))[1:] for key in _GROWING}
    with opened(subject) as backend:
        _write(backend, 0, 0)
        sealed(backend, 0)

        def read(state: StateDescriptor) -> Callable[[], None]:
            reader = backend.reader(_LIVE)

            def check() -> None:
                stay = [_placed(place) for place in [*_STABLE, *((None, key) for key in list(grown))]]
                scan = reader.scan(state)
                for group in _GROUPS:
                    found = list(scan.entries(group, None, _EVERY))
                    places = [entry[:2] for entry in found]
                    assert places == sorted(set(places)), f"twice or out of order: {places}"
                    here = {place[1:] for place in stay if place[0] == group}
                    assert here <= set(places) <= known, f"{here - set(places)} is missing of {state.name}"
                    for entry in found:
                        _check_live(state, entry)
                scan.close()

            return check

        with tiny_switch_interval(), Readers(*map(read, _KINDS)) as readers:
            _run_epochs(backend, readers, lambda epoch: grown.append(_grow(backend, epoch)))


def _check_live(state: StateDescriptor, entry: Scanned) -> None:
    """A value is one that was written, or says that it was changing."""
    if entry.value is not FailureCode.CONCURRENT_MODIFICATION:
        numbers = _numbers(state, entry)
        assert numbers <= {-1, 10_000, *range(_EPOCHS)}, f"{entry} of {state.name}"


class _Watched(Serializer):
    """MessagePack that calls `watch` once, before it reads a value."""

    name = "msgpack"
    watch: Callable[[], object] | None = None

    def dumps(self, value: Any) -> bytes:
        return MessagePackSerializer().dumps(value)

    def loads(self, data: bytes) -> Any:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch()
        return MessagePackSerializer().loads(data)


@law("N4", needs=_SCANS)
@pytest.mark.parametrize(
    "kind", [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor], ids=["value", "list", "map"]
)
def test_a_rollback_hides_no_committed_key(subject: BackendSubject, kind: Callable[..., StateDescriptor]) -> None:
    """A live scan while a rollback restores values visits every key that had one before the epoch and in it."""
    serializer = _Watched()
    state = kind("watched", serializer=serializer)
    with opened(subject) as backend, ThreadPoolExecutor(1) as pool:
        table = backend.table(state)
        for number in range(2):
            for key in _FOUND:
                # A mutable value: such a one is read again from its committed bytes.
                table.put(key, {"n": number} if isinstance(state, MapStateDescriptor) else [number])
            backend.publish()
            if number == 0:
                sealed(backend, 0)
                backend.begin(1)
        scans: list[Future[list[Scanned]]] = []

        def watch() -> None:
            scans.append(pool.submit(lambda: _visited(backend.reader(_LIVE).scan(state))))
            # A backend may let readers wait for the rollback.
            wait(scans, timeout=_BLOCKED_S)

        serializer.watch = watch
        backend.rollback()
        serializer.watch = None
        scans.append(pool.submit(lambda: _visited(backend.reader(_LIVE).scan(state))))
        for scan in scans:
            missing = {encode_key(key) for key in _FOUND} - {entry.key for entry in scan.result(WAIT_S)}
            assert not missing, f"a scan during the rollback misses {missing}"


def _publish(backend: StateBackend) -> None:
    _write(backend, 1, 1)
    backend.publish()


def _commit(backend: StateBackend) -> None:
    _write(backend, 1, 1)
    sealed(backend, 1)
    backend.begin(2)


def _finalize(backend: StateBackend) -> None:
    _write(backend, 1, 1)
    sealed(backend, 1)
    backend.finalize(1)


def _rollback(backend: StateBackend) -> None:
    _publish(backend)
    backend.rollback()


def _try_again(backend: StateBackend) -> None:
    backend.rollback()
    backend.begin(1)
    _write(backend, 1, 1)


_MOVES = {
    "write": lambda backend: _write(backend, 1, 1),
    "publish": _publish,
    "commit": _commit,
    "finalize": _finalize,
    "rollback": _rollback,
    "rollback and write": _try_again,
}


@law("N3", "N4", needs=_BOTH)
@pytest.mark.parametrize("move", _MOVES)
def test_a_visit_goes_on_after_the_writer_has_moved(subject: BackendSubject, move: str) -> None:
    """A visit that has begun when the writer writes, commits or rolls back keeps to its epoch, or misses no key."""
    for state in _KINDS:
        for isolation in (_COMMITTED, _LIVE):
            with opened(subject) as backend:
                _write(backend, 0, 0)
                sealed(backend, 0)
                backend.finalize(0)
                backend.begin(1)
                grown = _grow(backend, 1)
                scan = backend.reader(isolation).scan(state)
                visits = [scan.entries(group, None, _EVERY) for group in _GROUPS]
                found = [next(visit) for visit in visits[::2]]
                _MOVES[move](backend)
                found += [entry for visit in visits for entry in visit]
                scan.close()
                places = sorted(entry[:2] for entry in found)
                assert len(places) == len(set(places)), f"twice: {places}"
                if isolation is _LIVE:
                    stay = [*_STABLE, *([] if "rollback" in move else [(None, grown)])]
                    assert {_placed(place)[1:] for place in stay} <= set(places), f"{state.name} misses keys"
                    continue
                assert places == sorted(_expected(0)), f"{state.name} as of epoch 0: {places}"
                assert set().union(*(_numbers(state, entry) for entry in found)) == {0}, state.name
