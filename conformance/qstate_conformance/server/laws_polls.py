"""Laws of polls: every committed change once, in order, from any place; progress without changes; nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import (
    CHANGES,
    COMMITTED_EPOCH,
    HISTORY,
    HISTORY_KEYS,
    JOB,
    MAX_PARALLELISM,
    OLDEST_EPOCH,
    TYPED_HISTORY,
    Change,
)
from qstate_conformance.server.messages import Changes, Failure, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import ask_known, check_known, located, owner_sessions
from qstate_conformance.server.wire import DEADLINE_MS, Session, Target, connect
from qstate_conformance.subjects import ServerSubject

_TARGET = (JOB, HISTORY)
_SHORT_MS = 50
_COMMITTED = [change for change in CHANGES if change.epoch <= COMMITTED_EPOCH]
_GROUPS = st.integers(0, MAX_PARALLELISM - 1)


def _fields(
    target: Target = _TARGET,
    *,
    namespaces: tuple[Any, ...] = (),
    keys: tuple[Any, ...] = (),
    prefix: Any = None,
    groups: tuple[int, int] = (0, MAX_PARALLELISM),
    place: tuple[int, bytes] = (OLDEST_EPOCH, b""),
    wait_ms: int = 0,
    deadline_ms: int = DEADLINE_MS,
) -> tuple[Any, ...]:
    return (deadline_ms, target, namespaces, keys, prefix, *groups, *place, wait_ms, fixture.LIMITS.max_frame)


def _poll(session: Session, *arguments: Any, **options: Any) -> Changes | Failure:
    found = session.exchange(Type.POLL, *_fields(*arguments, **options))
    assert isinstance(found, Changes | Failure)
    return found


def _changes(session: Session, *arguments: Any, **options: Any) -> Changes:
    found = _poll(session, *arguments, **options)
    if not isinstance(found, Changes):
        raise Violation(f"P-POLL-1: {found} for a Poll of changes that are stored")
    return found


def _in(found: Changes) -> Iterator[Change]:
    for run in found.runs:
        nothing = (None,) * len(run.keys)
        for key, map_key, value in zip(run.keys, run.map_keys or nothing, run.values or nothing, strict=True):
            change = Change(run.epoch, key, value, run.namespace, map_key)
            if run.operation != change.operation:
                raise Violation(f"P-POLL-1: operation {run.operation} of {change}")
            yield change


def _all(session: Session, target: Target = _TARGET, first: int = OLDEST_EPOCH, **options: Any) -> list[Change]:
    """Every change from an epoch on, answer by answer."""
    found: list[Change] = []
    place = (first, b"")
    while place != (COMMITTED_EPOCH + 1, b""):
        answer = _changes(session, target, place=place, **options)
        found += _in(answer)
        after = (answer.next_epoch, answer.position)
        if after == place or answer.next_epoch > COMMITTED_EPOCH + 1:
            raise Violation(f"P-POLL-6: {answer} after {place}, with committed changes up to {COMMITTED_EPOCH}")
        place = after
    return found


def _expect(found: list[Change], expected: list[Change], rule: str) -> None:
    if [change.epoch for change in found] != sorted(change.epoch for change in found):
        raise Violation(f"P-POLL-2: epochs {[change.epoch for change in found]}")
    if sorted(map(repr, found)) != sorted(map(repr, expected)):
        missing = [change for change in expected if change not in found]
        more = [change for change in found if found.count(change) > expected.count(change)]
        raise Violation(f"{rule}: missing {missing}, too many {more}")


@law("P-POLL-1", "P-POLL-2", "P-POLL-6")
def test_every_committed_change_comes_once_in_the_order_of_the_epochs(subject: ServerSubject) -> None:
    """From the oldest stored epoch on, at the proxy and at the owner; the sealed epoch is not among them."""
    with connect(subject) as session, owner_sessions(subject, HISTORY) as owners:
        _expect(_all(session), _COMMITTED, "P-POLL-1")
        for owner, asked in owners:
            mine = [one for one in _COMMITTED if owner.start <= group_of(one.key, MAX_PARALLELISM) < owner.stop]
            _expect(_all(asked, owner.state_id, groups=(owner.start, owner.stop)), mine, "P-POLL-1")


@law("P-POLL-1", "P-POLL-3")
@examples(0.3)
@given(first=st.integers(OLDEST_EPOCH, COMMITTED_EPOCH))
def test_changes_can_be_had_from_any_stored_epoch_on(subject: ServerSubject, first: int) -> None:
    """A Poll from a later epoch has the changes of that epoch and all after it."""
    with connect(subject) as session:
        _expect(_all(session, first=first), [one for one in _COMMITTED if one.epoch >= first], "P-POLL-3")


@law("P-POLL-2", "P-POLL-3")
def test_answers_that_end_within_an_epoch_are_continued(subject: ServerSubject) -> None:
    """With small frames, and a new connection for each answer, every change still comes once."""
    found: list[Change] = []
    place = (OLDEST_EPOCH, b"")
    while place != (COMMITTED_EPOCH + 1, b""):
        with connect(subject, max_frame=4096) as session:
            answer = _changes(session, place=place)
        found += _in(answer)
        if (answer.next_epoch, answer.position) == place:
            raise Violation(f"P-POLL-3: {answer} leads back to {place}")
        place = (answer.next_epoch, answer.position)
    _expect(found, _COMMITTED, "P-POLL-3")


@law("P-POLL-1")
@examples(0.5)
@given(
    keys=st.lists(st.sampled_from((*HISTORY_KEYS, "absent")), unique=True, max_size=3),
    namespaces=st.sampled_from(((), (None,), ("2013-07-18",), ("none",))),
    groups=st.tuples(_GROUPS, _GROUPS),
)
def test_a_poll_selects_by_key_namespace_and_key_group(
    subject: ServerSubject, keys: list[str], namespaces: tuple[Any, ...], groups: tuple[int, int]
) -> None:
    """Changes are those of the keys, the namespace and the key groups of the Poll."""
    start, stop = min(groups), max(groups) + 1
    expected = [
        one
        for one in _COMMITTED
        if (not keys or one.key in keys)
        and (not namespaces or one.namespace in namespaces)
        and start <= group_of(one.key, MAX_PARALLELISM) < stop
    ]
    with connect(subject) as session:
        found = _all(session, keys=tuple(keys), namespaces=namespaces, groups=(start, stop))
        _expect(found, expected, "P-POLL-1")


@law("P-POLL-1")
def test_a_poll_selects_by_the_beginning_of_a_key(subject: ServerSubject) -> None:
    """A text selects the keys that begin with it, as in a Scan."""
    with connect(subject) as session:
        for prefix in ("", "JF", "key 1", "Zü", "?"):
            expected = [one for one in _COMMITTED if str(one.key).startswith(prefix)]
            _expect(_all(session, prefix=prefix), expected, "P-POLL-1")


@law("P-KEY-8", "P-POLL-1")
def test_keys_of_every_type_come_as_they_are(subject: ServerSubject) -> None:
    """The keys, namespaces and map keys of changes have their types, at the proxy and at the owner."""
    (history,) = (one for one in fixture.HISTORIES if one.state.name == TYPED_HISTORY)
    committed = [one for one in history.changes if one.epoch <= COMMITTED_EPOCH]
    with connect(subject) as session, owner_sessions(subject, TYPED_HISTORY) as owners:
        sources: list[tuple[Session, Target]] = [(session, (JOB, TYPED_HISTORY))]
        sources += [(asked, owner.state_id) for owner, asked in owners]
        for source, target in sources:
            _expect(_all(source, target), committed, "P-KEY-8")
            for one in committed[::11]:
                selected = pack((one.key, one.namespace))  # true is not 1, nor is 0 the decimal 0.00
                chosen = [other for other in committed if pack((other.key, other.namespace)) == selected]
                found = _all(source, target, keys=(one.key,), namespaces=(one.namespace,))
                _expect(found, chosen, "P-KEY-8")


@law("P-POLL-6", "P-POLL-7")
def test_without_changes_a_poll_waits_and_says_how_far_it_is(subject: ServerSubject) -> None:
    """While Polls wait, other requests are answered; in the end they have no runs, and all committed epochs."""
    with connect(subject) as session:
        ahead = [
            session.ask(Type.POLL, *_fields(place=(epoch, b""), keys=("absent",), wait_ms=_SHORT_MS))
            for epoch in (OLDEST_EPOCH, COMMITTED_EPOCH + 1, COMMITTED_EPOCH + 5)
        ]
        late = session.ask(Type.POLL, *_fields(place=(COMMITTED_EPOCH + 1, b""), wait_ms=DEADLINE_MS, deadline_ms=200))
        check_known(session, ask_known(session))
        for number, least in zip(ahead, (COMMITTED_EPOCH + 1, COMMITTED_EPOCH + 1, COMMITTED_EPOCH + 5), strict=True):
            found = session.answer(number)
            if not isinstance(found, Changes) or (found.runs, found.next_epoch) != ((), least):
                raise Violation(f"P-POLL-6: {found} for a Poll with nothing to have before epoch {least}")
            if found.committed != COMMITTED_EPOCH:
                raise Violation(f"P-POLL-6: {found}, where epoch {COMMITTED_EPOCH} is committed")
        ended = session.answer(late)
        if not isinstance(ended, Changes) and not (isinstance(ended, Failure) and ended.code == Code.DEADLINE_EXCEEDED):
            raise Violation(f"P-POLL-6: {ended} at the deadline of a Poll")


@law("P-POLL-11")
def test_a_server_that_may_lack_any_commit_says_so(subject: ServerSubject) -> None:
    """Changes of an owner that does not know what it lacks have no age, with changes and without any."""
    with connect(subject) as session:
        for first in (OLDEST_EPOCH, COMMITTED_EPOCH + 1):
            found = _changes(session, place=(first, b""))
            if found.staleness_ms is not None:
                raise Violation(f"P-POLL-11: {found}, where the owner may lack any number of commits")


@law("P-POLL-5")
def test_changes_that_are_not_stored_any_more_are_compacted(subject: ServerSubject) -> None:
    """A Poll from an epoch before the oldest stored one is COMPACTED, and told the oldest."""
    with connect(subject) as session:
        for epoch in range(OLDEST_EPOCH):
            found = _poll(session, place=(epoch, b""))
            if not isinstance(found, Failure) or found.code != Code.COMPACTED:
                raise Violation(f"P-POLL-5: {found} for changes from epoch {epoch} on")
            if found.details.get("oldest_epoch") != OLDEST_EPOCH:
                raise Violation(f"P-POLL-5: {found}, where changes from {OLDEST_EPOCH} on are stored")


@law("P-POLL-4", "P-POLL-8", "P-POLL-3")
def test_polls_that_cannot_be_answered_are_refused(subject: ServerSubject) -> None:
    """Key groups of others, keys of other types, foreign positions, and a state without changes to give."""
    with connect(subject) as session, owner_sessions(subject, "temperature") as owners:
        _refused(_poll(session, keys=(7,)), "P-POLL-8", Code.WRONG_KEY_TYPE)
        _refused(_poll(session, place=(OLDEST_EPOCH, b"?")), "P-POLL-3", Code.MALFORMED)
        for owner, asked in owners:
            for group in (owner.start, (owner.stop + 1) % MAX_PARALLELISM):
                codes = (Code.UNSUPPORTED,) if owner.start <= group < owner.stop else (Code.KEY_GROUP_NOT_OWNED,)
                found = _poll(asked, owner.state_id, groups=(group, group + 1), wait_ms=0)
                if not isinstance(found, Changes):  # a server may give changes of every state
                    _refused(found, "P-POLL-4", *codes, Code.KEY_GROUP_NOT_OWNED)
        assert located(session, HISTORY).max_parallelism == fixture.MAX_PARALLELISM


def _refused(found: Changes | Failure, rule: str, *codes: Code) -> None:
    if not isinstance(found, Failure) or found.code not in codes:
        raise Violation(f"{rule}: {found} instead of {codes}")
