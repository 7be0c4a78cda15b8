"""Laws of demands: an answer is of the epoch that was asked for, and as fresh, or there is none."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server.fixture import COMMITTED_EPOCH, JOB, LIVE_EPOCH, STALE, STATES, UNCOMMITTED, State
from qstate_conformance.server.messages import Answer, Description, Failure, Owner, Values, Violation
from qstate_conformance.server.probes import check_answer, located, owner_sessions, target_of
from qstate_conformance.server.wire import Session, Target, connect
from qstate_conformance.subjects import ServerSubject

#: Long enough to be met, short enough to wait for.
_SHORT_MS = 150
_STATES = [found for found in STATES if found.name != "blobs"]
_LARGEST = (1 << 63) - 1
#: How much later than the epoch of the state one is demanded.
_MORE = st.sampled_from([1, 2, 1 << 32, _LARGEST]) | st.integers(1, _LARGEST)


def _isolations(session: Session, found: State) -> list[tuple[dict[str, Any], int]]:
    """The options that choose an isolation which the state's backend offers, and the epoch that each shows."""
    described = session.describe(JOB)
    assert isinstance(described, Description), f"{described} for a Describe"
    (entry,) = (entry for entry in described.entries if entry["name"] == found.name)
    isolations: list[tuple[dict[str, Any], int]] = [({}, LIVE_EPOCH), ({"isolation": "live"}, LIVE_EPOCH)]
    offered = "committed_reads" in entry["capabilities"]
    return isolations + [({"isolation": "committed"}, COMMITTED_EPOCH)] * offered


def _expect_values(session: Session, found: State, options: dict[str, Any], epoch: int) -> None:
    entry = found.entries[0]
    target, namespace = target_of(found), entry.namespace
    values = session.get(target, entry.key, found.absent, namespace=namespace, options=options)
    if not isinstance(values, Values):
        raise Violation(f"P-GET-11: {values} with {options} for values of epoch {epoch}")
    check_answer(found, entry, values.results[0])
    if (values.results[1], values.epochs) != (None, (epoch, epoch)):
        raise Violation(f"P-GET-11: {values} with {options}")


def _expect_refusal(found: Answer, options: dict[str, Any]) -> None:
    """Refused as a whole or key by key; a server that waits for the epoch may run out of time."""
    assert isinstance(found, Values | Failure), f"P-REQ-2: {found} for a Get"
    answered = (found.code,) if isinstance(found, Failure) else found.results
    if not set(answered) <= {Code.EPOCH_NOT_REACHED, Code.DEADLINE_EXCEEDED}:
        raise Violation(f"P-GET-11: {found} with {options} for values of an earlier epoch")


@law("P-GET-11", "P-GET-13", "P-GET-14")
@examples(0.5)
@given(found=st.sampled_from(_STATES), share=st.floats(0, 1))
def test_an_epoch_that_is_reached_is_answered(subject: ServerSubject, found: State, share: float) -> None:
    """A Get with a min_epoch up to the state's has its values, in every isolation, nil with its epoch included."""
    with connect(subject) as session:
        for isolation, epoch in _isolations(session, found):
            for least in (int(epoch * share), epoch):
                _expect_values(session, found, {**isolation, "min_epoch": least}, epoch)


@law("P-GET-11", "P-GET-13", "P-GET-14", "P-DEADLINE-3")
@examples(0.1)
@given(found=st.sampled_from(_STATES), more=_MORE)
def test_an_epoch_that_is_not_reached_is_refused(subject: ServerSubject, found: State, more: int) -> None:
    """A Get with a later min_epoch is EPOCH_NOT_REACHED by its deadline, for keys with a value and without."""
    entry = found.entries[0]
    with connect(subject) as session:
        asked = [
            (session.ask(Type.GET, _SHORT_MS, target_of(found), entry.namespace, options, (key,)), options)
            for isolation, epoch in _isolations(session, found)
            for options in [{**isolation, "min_epoch": min(epoch + more, _LARGEST)}]
            for key in (entry.key, found.absent)
        ]
        for number, options in asked:
            _expect_refusal(session.answer(number), options)
        session.ping()


@law("P-GET-11", "P-GET-5")
@examples(0.1)
@given(more=_MORE)
def test_an_owner_judges_the_epoch_itself(subject: ServerSubject, more: int) -> None:
    """An owner refuses a later min_epoch as a proxy does, and answers one that is reached."""
    found = _STATES[0]
    with owner_sessions(subject, found.name) as owners:
        for owner, session in owners:
            options = {"min_epoch": min(LIVE_EPOCH + more, _LARGEST)}
            refusal = session.get(owner.state_id, found.entries[0].key, options=options, deadline_ms=_SHORT_MS)
            elsewhere = isinstance(refusal, Values) and set(refusal.results) == {Code.KEY_GROUP_NOT_OWNED}
            if not elsewhere:
                _expect_refusal(refusal, options)
            reached = session.get(owner.state_id, found.entries[0].key, options={"min_epoch": LIVE_EPOCH})
            assert isinstance(reached, Values), f"P-GET-11: {reached} for epoch {LIVE_EPOCH}"


@law("P-GET-12", "P-GET-13")
@examples(0.3)
@given(found=st.sampled_from(_STATES), most_ms=st.sampled_from([0, 1, 1000, _LARGEST]) | st.integers(0, _LARGEST))
def test_what_is_current_is_fresh_enough_for_any_bound(subject: ServerSubject, found: State, most_ms: int) -> None:
    """No epoch was committed after the fixture's, so no bound of staleness refuses it, alone or beside an epoch."""
    with connect(subject) as session:
        for isolation, epoch in _isolations(session, found):
            _expect_values(session, found, {**isolation, "max_staleness_ms": most_ms}, epoch)
            _expect_values(session, found, {**isolation, "max_staleness_ms": most_ms, "min_epoch": epoch}, epoch)


@law("P-GET-15", "P-GET-13", "P-GET-2")
def test_before_the_first_commit_a_committed_read_is_refused(subject: ServerSubject) -> None:
    """A committed read of a state without a committed epoch is NO_COMMITTED_EPOCH, whatever it demands; live is not."""
    key, epoch = UNCOMMITTED.entries[0].key, 0
    demands: list[dict[str, Any]] = [{}, {"min_epoch": 0}, {"min_epoch": _LARGEST}, {"max_staleness_ms": 0}]
    with connect(subject) as session, owner_sessions(subject, UNCOMMITTED.name) as owners:
        for asked, target in _ways(session, UNCOMMITTED, owners):
            live = asked.get(target, key, UNCOMMITTED.absent, options={"min_epoch": epoch})
            if not isinstance(live, Values) or live.epochs != (epoch, epoch) or live.results[1] is not None:
                raise Violation(f"P-GET-14: {live} for a live read of epoch {epoch}")
            check_answer(UNCOMMITTED, UNCOMMITTED.entries[0], live.results[0])
            for demand in demands if _offers_committed(session, UNCOMMITTED) else []:
                options = {"isolation": "committed", **demand}
                _expect_codes(
                    asked.get(target, key, UNCOMMITTED.absent, options=options, deadline_ms=_SHORT_MS),
                    Code.NO_COMMITTED_EPOCH,
                    "P-GET-15",
                )
        session.ping()


@law("P-GET-12", "P-GET-13")
@examples(0.1)
@given(most_ms=st.sampled_from([0, 1, 1000, _LARGEST]) | st.integers(0, _LARGEST))
def test_a_view_that_may_lack_anything_is_too_stale_for_any_bound(subject: ServerSubject, most_ms: int) -> None:
    """A committed view that cannot say what it lacks is TOO_STALE for every bound, and is read without one."""
    entry, options = STALE.entries[0], {"isolation": "committed"}
    with connect(subject) as session, owner_sessions(subject, STALE.name) as owners:
        if not _offers_committed(session, STALE):
            return
        for asked, target in _ways(session, STALE, owners):
            bound = {**options, "max_staleness_ms": most_ms}
            _expect_codes(
                asked.get(target, entry.key, options=bound, deadline_ms=_SHORT_MS), Code.TOO_STALE, "P-GET-12"
            )
            values = asked.get(target, entry.key, options=options)
            if not isinstance(values, Values) or values.epochs != (COMMITTED_EPOCH,):
                raise Violation(f"P-GET-12: {values} for a committed read that demands nothing")
            check_answer(STALE, entry, values.results[0])


def _ways(proxy: Session, found: State, owners: list[tuple[Owner, Session]]) -> list[tuple[Session, Target]]:
    """The proxy, asked by name, and each owner, asked by its state id."""
    return [(proxy, target_of(found)), *((session, owner.state_id) for owner, session in owners)]


def _offers_committed(session: Session, found: State) -> bool:
    return "committed_reads" in located(session, found.name).state["capabilities"]


def _expect_codes(found: Values | Failure, code: Code, rule: str) -> None:
    """Refused so, as a whole or key by key; a server that waits may run out of time."""
    answered = (found.code,) if isinstance(found, Failure) else found.results
    if not set(answered) <= {code, Code.DEADLINE_EXCEEDED}:
        raise Violation(f"{rule}: {found} instead of {code.name}")
