"""Laws of timers: their order, what a queue adds and removes, and that epochs undo, commit and restore them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends import Change, ChangeOp, StateBackend, Timer, TimerQueue
from qstate.backends.replay import replay_epoch
from qstate.descriptors import MapStateDescriptor, TimerDescriptor, ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.keys import KeyGroupRange, key_group
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_equal, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import LIST, MAP, STATES, TIMERS, TWIN_TIMERS, VALUE
from qstate_conformance.backend.strategies import timer_lists, times
from qstate_conformance.backend.timers import EVER, check_timers, in_order, taken
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

#: Timers of one epoch in the law of scale.
_MANY = 20_500


def _add(queue: TimerQueue, timers: list[Timer]) -> None:
    for timer in timers:
        queue.add(timer)


def _committed(backend: StateBackend, epoch: int, timers: list[Timer]) -> list[Change]:
    """Begin the epoch, add the timers and commit."""
    backend.begin(epoch)
    _add(backend.timers(TIMERS), timers)
    return sealed(backend, epoch)


def _of(timers: list[Timer]) -> Model:
    model = Model()
    for time, namespace, key in timers:
        model.map_put((TIMERS.name, namespace, key), time, True)
    return model


# -- the order


@law("Q2", "Q3")
@given(before=timer_lists(), timers=timer_lists(), at_once=st.integers(1, 5))
@example(before=[Timer(EVER, -1, -1), Timer(EVER, "w", "k")], timers=[Timer(EVER, None, -1)], at_once=1)
@example(before=[Timer(-(2**63), 0, 0)], timers=[Timer(-(2**63), -1, -1), Timer(-1, -1, -1)], at_once=5)
def test_timers_come_in_the_order_of_their_times_namespaces_and_keys(
    subject: BackendSubject, before: list[Timer], timers: list[Timer], at_once: int
) -> None:
    """However they were added, committed or not, timers are taken by time, then by encoded namespace, then by key."""
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, before)
        sealed(backend, 0)
        backend.begin(1)
        _add(queue, timers)
        check_same(taken(queue, at_once), in_order([*before, *timers]))
        assert queue.first() is None
        assert queue.take(EVER, 1) == []


@law("Q2")
@given(timers=timer_lists(), upto=times, limit=st.integers(1, 6), committed=st.booleans())
def test_take_ends_at_its_time_or_its_limit(
    subject: BackendSubject, timers: list[Timer], upto: int, limit: int, committed: bool
) -> None:
    """`take` gives timers of the time `upto` and no later one, and no more than `limit`; the others stay."""
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, timers)
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        ordered = in_order(timers)
        due = [timer for timer in ordered if timer.time <= upto][:limit]
        check_same(queue.take(upto, limit), due)
        check_same(taken(queue), ordered[len(due) :])


@law("Q2", "Q3")
@given(timers=timer_lists(), more=timer_lists(), limit=st.integers(1, 3), committed=st.booleans())
def test_timers_that_are_added_between_two_takes_come_in_their_place(
    subject: BackendSubject, timers: list[Timer], more: list[Timer], limit: int, committed: bool
) -> None:
    """A timer may be added that is earlier than those taken, or was among them: it is taken, in its place."""
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, timers)
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        gone = queue.take(EVER, limit)
        _add(queue, [*more, *gone[:1]])
        check_same(taken(queue, limit), in_order([*in_order(timers)[len(gone) :], *more, *gone[:1]]))


@law("Q2")
def test_first_is_the_time_of_the_earliest_timer(subject: BackendSubject) -> None:
    """`first` follows what is added, removed, taken, undone and committed; without timers it is None."""
    with opened(subject) as backend:
        queue, (early, late) = backend.timers(TIMERS), (Timer(-5, None, "a"), Timer(7, "w", "b"))
        assert queue.first() is None
        _add(queue, [late, early])
        assert queue.first() == -5
        queue.remove(early)
        assert queue.first() == 7
        queue.add(early)
        sealed(backend, 0)
        assert queue.first() == -5
        backend.finalize(0)
        backend.begin(1)
        assert queue.take(-5, 9) == [early]
        assert queue.first() == 7
        queue.remove(late)
        assert queue.first() is None
        backend.rollback()
        assert queue.first() == -5
        backend.begin(1)
        queue.take(EVER, 9)
        sealed(backend, 1)
        assert queue.first() is None


# -- what changes a queue


@law("Q1")
@given(timers=timer_lists(), committed=st.booleans())
def test_a_timer_that_is_added_twice_is_one(subject: BackendSubject, timers: list[Timer], committed: bool) -> None:
    """Equal time, namespace and key are one timer: taken once, removed by one `remove`, one change of a commit."""
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, timers)
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        _add(queue, timers[::-1])
        removed = timers[:1]
        for timer in removed:
            queue.remove(timer)
        left = [timer for timer in in_order(timers) if timer not in removed]
        check_same(taken(queue), left)
        _add(queue, timers)
        changes = sealed(backend, int(committed))
        assert len(changes) == len({(change.namespace, change.key, change.map_key) for change in changes})


@law("Q1")
@given(timers=timer_lists(), others=timer_lists())
def test_removing_what_is_not_there_changes_nothing(
    subject: BackendSubject, timers: list[Timer], others: list[Timer]
) -> None:
    """`remove` of a timer of another time, namespace or key leaves the queue as it is, and commits nothing."""
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, timers)
        sealed(backend, 0)
        backend.begin(1)
        for timer in in_order(others):
            if timer not in in_order(timers):
                queue.remove(timer)
        assert sealed(backend, 1) == []
        backend.begin(2)
        check_same(taken(queue), in_order(timers))


@law("Q3")
@pytest.mark.parametrize("committed", [False, True], ids=["of the same epoch", "committed"])
def test_a_taken_timer_is_removed(subject: BackendSubject, committed: bool) -> None:
    """A timer that was taken is not taken again, neither later, nor from a restored backend; it can be added again."""
    timer, other = Timer(5, "w", "k"), Timer(6, "w", "k")
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        queue = backend.timers(TIMERS)
        _add(queue, [timer, other])
        changes = list[Change]()
        if committed:
            changes += sealed(backend, 0)
            backend.begin(1)
        assert queue.take(5, 9) == [timer]
        queue.remove(timer)
        assert queue.take(5, 9) == []
        last = int(committed)
        changes += sealed(backend, last)
        check_timers(instances.restored(last, changes), _of([other]), last + 1)
        backend.begin(last + 1)
        queue.add(timer)
        assert taken(queue) == [timer, other]


@law("Q5")
@pytest.mark.parametrize("time", [2**63, -(2**63) - 1, 2**64, 10**30], ids=str)
def test_a_time_of_more_than_64_bits_is_refused(subject: BackendSubject, time: int) -> None:
    """Neither `add` nor `remove` takes a time that is not an integer of 64 bits, and the queue stays as it was."""
    with opened(subject) as backend:
        queue, ends = backend.timers(TIMERS), [Timer(-(2**63), None, "k"), Timer(EVER, None, "k")]
        _add(queue, ends)
        for refused in (queue.add, queue.remove):
            with pytest.raises(SerializationError):
                refused(Timer(time, None, "k"))
        assert len(sealed(backend, 0)) == 2
        backend.begin(1)
        assert taken(queue) == ends


# -- epochs

_Step = Callable[[TimerQueue, Timer], object]


def _take(queue: TimerQueue, timer: Timer) -> None:
    """Take this timer alone: the histories of one queue have times of their own."""
    queue.take(timer.time, 1)


_STEPS: dict[str, tuple[_Step, bool]] = {
    "add": (lambda queue, timer: queue.add(timer), True),
    "remove": (lambda queue, timer: queue.remove(timer), False),
    "take": (_take, False),
}
_HISTORIES = list(product([True, False], product(_STEPS, repeat=3)))
_TIMER = Timer(-3, ("w", 1), "k")


def _run(backend: StateBackend, epoch: int, present: bool, steps: tuple[str, ...]) -> bool:
    """Commit the timer, if it shall be present, or its removal; begin the next epoch with the steps. Is it held?"""
    backend.begin(epoch)
    queue, held = backend.timers(TIMERS), present
    if present:
        queue.add(_TIMER)
    else:
        queue.remove(_TIMER)
    sealed(backend, epoch)
    backend.begin(epoch + 1)
    for name in steps:
        step, held = _STEPS[name]
        step(queue, _TIMER)
    return held


@law("Q4", "Q1")
def test_every_history_of_a_timer_is_undone_by_a_rollback(subject: BackendSubject) -> None:
    """Whatever three operations did to a timer, committed before or not, a rollback leaves what was committed."""
    with opened(subject, begin=False) as backend:
        for number, (present, steps) in enumerate(_HISTORIES):
            epoch = 2 * number
            _run(backend, epoch, present, steps)
            backend.rollback()
            backend.begin(epoch + 1)
            assert sealed(backend, epoch + 1) == [], (present, steps)
            check_same(len(list(backend.entries(ALL))), int(present), (present, steps))
            check_timers(backend, _of([_TIMER] * present), epoch + 2)


@law("Q4", "Q6", "B9")
def test_every_history_of_a_timer_is_told_by_its_commit(subject: BackendSubject) -> None:
    """Whatever three operations did to a timer, the changes build what is held; of what never was they have nothing."""
    with opened(subject, begin=False) as backend:
        for number, (present, steps) in enumerate(_HISTORIES):
            epoch = 2 * number
            held = _run(backend, epoch, present, steps)
            replica = Replica()
            replica.load(backend.entries(ALL))
            changes = sealed(backend, epoch + 1)
            replica.load(changes)
            check_same(replica.model().entries, _of([_TIMER] * held).entries, (present, steps))
            told = {change.op for change in changes}
            assert told <= ({ChangeOp.MAP_PUT} if held else {ChangeOp.MAP_REMOVE} if present else set()), steps
            check_timers(backend, _of([_TIMER] * held), epoch + 2)


@law("Q4", "B4")
@given(
    epochs=st.lists(st.tuples(timer_lists(6), times, st.integers(0, 4), st.booleans()), min_size=1, max_size=5),
    by_entries=st.booleans(),
)
def test_only_committed_epochs_count(
    subject: BackendSubject, epochs: list[tuple[list[Timer], int, int, bool]], by_entries: bool
) -> None:
    """Epochs add and take timers, and some are undone: no timer is lost, and none comes twice."""
    held, changes = list[Timer](), list[Change]()
    with Instances(subject) as instances:
        backend = instances.open()
        for epoch, (added, upto, limit, undone) in enumerate(epochs):
            for attempt in range(2 if undone else 1):
                backend.begin(epoch)
                queue = backend.timers(TIMERS)
                _add(queue, added)
                ordered = in_order([*held, *added])
                due = [timer for timer in ordered if timer.time <= upto][:limit]
                found = queue.take(upto, limit) if limit else []
                check_same(found, due, f"epoch {epoch}, attempt {attempt}")
                if undone and attempt == 0:
                    backend.rollback()
            changes += sealed(backend, epoch)
            held = ordered[len(due) :]
        last = len(epochs)
        check_timers(backend, _of(held), last)
        told = list(backend.entries(ALL)) if by_entries else changes
        check_timers(instances.restored(last, told), _of(held), last + 1)


@law("Q4", "B11")
def test_a_failed_commit_keeps_the_timers_of_the_epoch(subject: BackendSubject) -> None:
    """After a commit that raises, the queue is as the epoch left it; a rollback gives the committed timers."""
    timers = [Timer(time, None, "k") for time in range(4)]
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        _add(queue, timers[:3])
        sealed(backend, 0)
        backend.begin(1)
        with pytest.raises(SerializationError):  # from the write or from the commit
            queue.take(0, 1)
            queue.add(timers[3])
            backend.table(LIST).list_add("k", [object()])
            sealed(backend, 1)
        assert queue.first() == 1
        assert [change.map_key for change in backend.entries(ALL)] != []
        backend.rollback()
        check_timers(backend, _of(timers[:3]), 1)


# -- changes, entries and restoring


@law("Q6", "B10")
def test_timers_have_the_documented_bytes(subject: BackendSubject) -> None:
    """Golden bytes of an added timer, of a removed one, of one that was taken, and of entries."""
    put, removed = ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE
    first = Change(put, "timers", 120, b"\x92\xa1w\x07", b"\xa3JFK", b"\xff", b"\xc3")
    second = Change(put, "timers", 120, b"\xc0", b"\xa3JFK", b"\xcd\x01\x00", b"\xc3")
    with opened(subject) as backend:
        queue = backend.timers(TIMERS)
        timers = [Timer(-1, ("w", 7), "JFK"), Timer(256, None, "JFK")]
        _add(queue, timers)
        assert {Change(*change) for change in sealed(backend, 0)} == {first, second}
        assert {Change(*change) for change in backend.entries(ALL)} == {first, second}
        backend.begin(1)
        queue.remove(timers[1])
        queue.take(-1, 1)
        gone = {change._replace(op=removed, data=b"") for change in (first, second)}
        assert {Change(*change) for change in sealed(backend, 1)} == gone
        assert list(backend.entries(ALL)) == []


@law("Q6", "B13", "B5")
@given(timers=timer_lists(), more=timer_lists(4), cut=st.integers(1, 127), other=st.integers(1, 127))
def test_rescaling_keeps_every_timer_once(
    subject: BackendSubject, timers: list[Timer], more: list[Timer], cut: int, other: int
) -> None:
    """Instances of other key groups take the timers over, from changes and from entries: each is at its key's owner."""
    with Instances(subject) as instances:
        backend = instances.open()
        changes = [*_committed(backend, 0, timers), *_committed(backend, 1, more)]
        before = [KeyGroupRange(0, cut), KeyGroupRange(cut, 128)]
        sources = [instances.restored(1, changes, groups) for groups in before]
        parts = [change for source in sources for change in source.entries(ALL)]
        for groups in (KeyGroupRange(0, other), KeyGroupRange(other, 128), ALL):
            mine = [timer for timer in [*timers, *more] if key_group(timer.key, 128) in groups]
            check_timers(instances.restored(1, parts, groups), _of(mine), 2)
            entries = list(backend.entries(groups))
            assert all(change.group in groups for change in entries)
            check_timers(instances.restored(1, entries), _of(mine), 2)


@law("Q6", "B5")
@given(timers=timer_lists(), more=timer_lists(4), read_first=st.integers(0, 3))
def test_entries_do_not_show_the_timers_of_the_running_epoch(
    subject: BackendSubject, timers: list[Timer], more: list[Timer], read_first: int
) -> None:
    """While the next epoch adds, removes and takes timers, `entries` has exactly the committed ones."""
    with Instances(subject) as instances:
        backend = instances.open()
        _committed(backend, 0, timers)
        backend.begin(1)
        entries, queue = backend.entries(ALL), backend.timers(TIMERS)
        read = [change for _, change in zip(range(read_first), entries, strict=False)]
        _add(queue, more)
        for timer in timers[:2]:
            queue.remove(timer)
        queue.take(EVER, 2)
        backend.publish()
        check_timers(instances.restored(0, [*read, *entries]), _of(timers), 1)
        check_timers(instances.restored(0, list(backend.entries(ALL))), _of(timers), 1)
        read_whole = list(backend.entries(ALL))
        assert len(read_whole) == len(in_order(timers))


@law("Q6", "B3")
@given(epochs=st.lists(st.tuples(timer_lists(6), st.integers(0, 3)), min_size=1, max_size=4))
def test_replayed_epochs_give_the_timers(subject: BackendSubject, epochs: list[tuple[list[Timer], int]]) -> None:
    """The changes of each epoch, applied one by one in epochs of another backend, give the same queue."""
    with Instances(subject) as instances:
        backend, other = instances.open(), instances.open()
        for epoch, (added, limit) in enumerate(epochs):
            backend.begin(epoch)
            queue = backend.timers(TIMERS)
            _add(queue, added)
            if limit:
                queue.take(EVER, limit)
            replay_epoch(other, STATES, epoch, sealed(backend, epoch))
            assert other.timers(TIMERS).first() == queue.first()
        assert sorted(other.entries(ALL)) == sorted(backend.entries(ALL))


@law("B19", "Q2", "Q4")
def test_many_timers_are_kept_undone_restored_and_taken_in_order(subject: BackendSubject) -> None:
    """Of 41,000 timers, added in no order in two epochs, none is lost, none comes twice, and all come in order."""
    timers = [Timer(time * 7 - _MANY, "w" if time % 3 else None, time % 1000) for time in range(2 * _MANY)]
    Random(0).shuffle(timers)
    ordered = in_order(timers)
    with Instances(subject) as instances:
        backend = instances.open()
        changes = [*_committed(backend, 0, timers[:_MANY]), *_committed(backend, 1, timers[_MANY:])]
        backend.begin(2)
        queue, middle = backend.timers(TIMERS), ordered[_MANY].time
        check_equal(_taken_upto(queue, middle), ordered[: _MANY + 1])
        backend.rollback()
        backend.begin(2)
        check_equal(_taken_upto(queue, middle), ordered[: _MANY + 1])
        changes += sealed(backend, 2)
        backend.begin(3)
        assert queue.first() == ordered[_MANY + 1].time
        restored = [instances.restored(2, told) for told in (changes, list(backend.entries(ALL)))]
        for other in restored:
            other.begin(3)
        for holder in (backend, *restored):
            check_equal(taken(holder.timers(TIMERS)), ordered[_MANY + 1 :])


def _taken_upto(queue: TimerQueue, upto: int) -> list[Timer]:
    found: list[Timer] = []
    while part := queue.take(upto, 1000):
        found += part
    return found


# -- registration


@law("B2")
def test_timers_and_states_have_names_of_their_own(subject: BackendSubject) -> None:
    """A state's name cannot be that of timers, nor the other way round; each queue has its own timers."""
    with opened(subject) as backend:
        backend.table(MAP, "w")
        for taken_name in (MAP.name, VALUE.name):
            with pytest.raises(JobError):
                backend.timers(TimerDescriptor(taken_name))
        for namespace in (None, "w"):
            for refused in (MapStateDescriptor(TIMERS.name), ValueStateDescriptor(TIMERS.name)):
                with pytest.raises(JobError):
                    backend.table(refused, namespace)
        assert backend.timers(TIMERS) is backend.timers(TimerDescriptor(TIMERS.name))
        backend.timers(TIMERS).add(Timer(1, None, "k"))
        assert (backend.timers(TIMERS).first(), backend.timers(TWIN_TIMERS).first()) == (1, None)
        apply([Write("map_put", MAP.name, None, "k", (1, True))], backend, Model())
        assert taken(backend.timers(TWIN_TIMERS)) == []


@law("B15")
def test_restore_wants_the_timers_declared_and_none_added(subject: BackendSubject) -> None:
    """`restore` refuses timers that no function has asked for, and a backend that holds a timer."""
    unclaimed: Any = TimerDescriptor("unclaimed timers")
    with Instances(subject) as instances:
        source, written = instances.open(), instances.open()
        changes = _committed(source, 0, [Timer(1, None, "k")])
        written.begin(0)
        written.timers(TIMERS).add(Timer(2, None, "k"))
        with pytest.raises(JobError):
            written.restore(0, changes)
        assert taken(written.timers(TIMERS)) == [Timer(2, None, "k")]
        other = instances.open()
        other.begin(0)
        other.timers(unclaimed).add(Timer(1, None, "k"))
        undeclared = sealed(other, 0)
        with pytest.raises(JobError):
            instances.open().restore(0, undeclared)
