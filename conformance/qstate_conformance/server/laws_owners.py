"""Laws of state servers, which clients find through Locate and ask by state id."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key, group_of
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import (
    COMMITTED_EPOCH,
    JOB,
    LIMITS,
    LIVE_EPOCH,
    MAX_PARALLELISM,
    MOVED,
    STATES,
    State,
    state,
)
from qstate_conformance.server.messages import Description, Failure, Owner, Pong, Values, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, check_answer, check_each, located, owner_sessions
from qstate_conformance.server.wire import DEADLINE_MS, Session, connect
from qstate_conformance.subjects import ServerSubject

_SMALL_STATES = [found for found in STATES if found.name != "blobs"]


def _is_at(owner: Owner, key: Key) -> bool:
    return owner.start <= group_of(key, MAX_PARALLELISM) < owner.stop


def _expect(found: Any, *codes: Code) -> None:
    if not isinstance(found, Failure) or found.code not in codes:
        raise Violation(f"{found} instead of {' or '.join(code.name for code in codes)}")


@law("P-GET-1", "P-GET-2", "P-GET-5", "P-VALUE-1", "P-KEY-3", "P-KEY-4", "P-LOC-1")
def test_every_entry_of_the_fixture_is_at_its_owner(subject: ServerSubject) -> None:
    """Each entry is answered, byte for byte, by the owner of its key's group and by no other."""
    for found in _SMALL_STATES:
        with owner_sessions(subject, found.name) as owners:
            for entry in found.entries:
                at = [owner for owner, _ in owners if _is_at(owner, entry.key)]
                assert len(at) == 1, f"P-LOC-1: {at} own {found.name}[{entry.key!r}]"
                for owner, session in owners:
                    values = session.get(owner.state_id, entry.key, namespace=entry.namespace)
                    if owner is at[0]:
                        assert isinstance(values, Values), f"{values} for {found.name}[{entry.key!r}]"
                        check_answer(found, entry, values.results[0])
                        assert values.epochs == (LIVE_EPOCH,), f"P-GET-2: {values.epochs}"
                    else:
                        _expect_not_owned(values)


def _expect_not_owned(found: Values | Failure) -> None:
    code = found.code if isinstance(found, Failure) else found.results[0]
    if code != Code.KEY_GROUP_NOT_OWNED:
        raise Violation(f"P-GET-5: {found} for a key whose group the server does not hold")


@law("P-GET-16", "P-DESC-4")
def test_the_values_of_a_state_have_its_fingerprint(subject: ServerSubject) -> None:
    """The Values of a state, of the proxy and of each owner, have the fingerprint of its Location."""
    for found in _SMALL_STATES:
        keys = [entry.key for entry in found.entries[:10]]
        with connect(subject) as proxy, owner_sessions(subject, found.name) as owners:
            described = located(proxy, found.name).state
            answers = [proxy.get((JOB, found.name), *keys)]
            answers += [session.get(owner.state_id, *keys) for owner, session in owners]
        for values in answers:
            if isinstance(values, Values) and values.fingerprint != described["fingerprint"]:
                raise Violation(f"P-GET-16: the fingerprint {values.fingerprint} for {dict(described)}")


@law("P-GET-5", "P-GET-1", "P-GET-2", "P-GET-3", "P-KEY-4")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_keys_of_other_owners_fail_alone(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """Of keys of all owners and of none, a state server answers its own and says KEY_GROUP_NOT_OWNED to each other."""
    here = {entry.key: entry for entry in found.entries if entry.namespace is None}
    known = st.sampled_from([*here, found.absent, found.homeless])
    keys = data.draw(st.lists(known | strategies.keys_of(found.key_types), min_size=2, max_size=12))
    with owner_sessions(subject, found.name) as owners:
        for owner, session in owners:
            values = session.get(owner.state_id, *keys)
            if isinstance(values, Failure):
                assert not any(_is_at(owner, key) for key in keys), f"P-GET-5: {values} for {keys}"
                _expect_not_owned(values)
                continue
            for key, epoch, result in zip(keys, values.epochs, values.results, strict=True):
                if not _is_at(owner, key):
                    assert (epoch, result) == (-1, Code.KEY_GROUP_NOT_OWNED), f"P-GET-5: {result!r} for {key!r}"
                elif key in here:
                    check_answer(found, here[key], result)
                else:
                    assert result is None, f"P-GET-3: {result!r} for {key!r}"


@law("P-GET-5", "P-LOC-3", "P-REQ-3")
@examples(0.3)
@given(state_id=st.binary(min_size=16, max_size=16), isolation=st.sampled_from(["live", "committed"]))
def test_an_unknown_state_id_is_unknown(subject: ServerSubject, state_id: bytes, isolation: str) -> None:
    """A state id that the server does not hold is UNKNOWN_STATE_ID, also when it differs in a bit from one it holds."""
    with owner_sessions(subject, "temperature") as owners:
        ids = {owner.state_id for owner, _ in owners}
        for owner, session in owners:
            near = bytes((owner.state_id[0] ^ 1,)) + owner.state_id[1:]
            for unknown in {state_id, near} - ids:
                _expect(session.get(unknown, "JFK", options={"isolation": isolation}), Code.UNKNOWN_STATE_ID)
            session.ping()


@law("P-GET-5", "P-LOC-3")
def test_every_byte_of_a_state_id_counts(subject: ServerSubject) -> None:
    """An id that differs from one that the server holds in any one byte, or shares a half with it, is unknown."""
    with connect(subject) as session:
        others = [owner.state_id for found in STATES for owner in located(session, found.name).owners]
    with owner_sessions(subject, "temperature") as owners:
        for owner, session in owners:
            held = owner.state_id
            unknown = {held[:place] + bytes((held[place] ^ 1,)) + held[place + 1 :] for place in range(len(held))}
            unknown |= {held[:8] + other[8:] for other in others} | {other[:8] + held[8:] for other in others}
            unknown |= {held[:8] + bytes(8), bytes(8) + held[8:], held[8:] + held[:8], held[::-1]}
            for state_id in unknown - {*others}:
                _expect(session.get(state_id, "JFK"), Code.UNKNOWN_STATE_ID)
            session.ping()


@law("P-GET-5", "P-LOC-3")
def test_the_owner_of_a_moved_state_does_not_know_it(subject: ServerSubject) -> None:
    """The state server to which a stale Location leads says UNKNOWN_STATE_ID."""
    with owner_sessions(subject, MOVED) as owners:
        assert owners, "the fixture's moved state has an owner that does not hold it"
        for owner, session in owners:
            _expect(session.get(owner.state_id, "JFK"), Code.UNKNOWN_STATE_ID)


@law("P-GET-5", "P-REQ-4")
def test_a_state_server_serves_get_by_id_and_ping_alone(subject: ServerSubject) -> None:
    """A state server says UNSUPPORTED to a Get by names, to Locate and to Describe, and answers Ping."""
    with owner_sessions(subject, "temperature") as owners:
        for _, session in owners:
            _expect(session.get(TEMPERATURE, "JFK"), Code.UNSUPPORTED)
            _expect(session.locate(*TEMPERATURE), Code.UNSUPPORTED)
            _expect(session.describe(JOB), Code.UNSUPPORTED)
            _expect(session.describe(None), Code.UNSUPPORTED)
            assert isinstance(session.exchange(Type.PING), Pong)


@law("P-GET-7", "P-KEY-1")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_an_owner_refuses_keys_of_other_types(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """At a state server, too, one key of other types makes the whole Get WRONG_KEY_TYPE, also with unowned keys."""
    keys = [found.entries[0].key, found.homeless]
    keys.insert(data.draw(st.integers(0, 2)), data.draw(strategies.other_keys(found.key_types)))
    with owner_sessions(subject, found.name) as owners:
        for owner, session in owners:
            _expect(session.get(owner.state_id, *keys), Code.WRONG_KEY_TYPE)


@law("P-GET-4")
def test_an_owner_does_not_ignore_options(subject: ServerSubject) -> None:
    """At a state server, too, unknown options and isolations are UNSUPPORTED, and committed reads are as described."""
    with connect(subject) as proxy:
        description = proxy.describe(JOB)
        assert isinstance(description, Description), f"{description} for a Describe"
        offering = {entry["name"] for entry in description.entries if "committed_reads" in entry["capabilities"]}
    entry = state("temperature").entries[0]
    with owner_sessions(subject, "temperature") as owners:
        for owner, session in owners:
            if not _is_at(owner, entry.key):
                continue
            _expect(session.get(owner.state_id, entry.key, options={"colour": "red"}), Code.UNSUPPORTED)
            _expect(session.get(owner.state_id, entry.key, options={"isolation": "snapshot"}), Code.UNSUPPORTED)
            committed = session.get(owner.state_id, entry.key, options={"isolation": "committed"})
            if "temperature" in offering:
                assert isinstance(committed, Values) and committed.epochs == (COMMITTED_EPOCH,), f"P-GET-4: {committed}"
            else:
                _expect(committed, Code.UNSUPPORTED)


@law("P-GET-8", "P-FRAME-2")
def test_an_owner_refuses_an_answer_over_the_frame(subject: ServerSubject) -> None:
    """A state server answers TOO_LARGE to a Get whose answer would be over max_frame, and serves other requests."""
    with owner_sessions(subject, "blobs") as owners:
        for owner, session in owners:
            mine = [entry for entry in state("blobs").entries if _is_at(owner, entry.key)]
            for entry in mine:
                assert isinstance(entry.contents, bytes)
                found = session.get(owner.state_id, entry.key)
                if len(entry.contents) > session.welcome.max_frame:
                    _expect_too_large(found)
                else:
                    assert isinstance(found, Values) and found.results == (entry.contents,), f"{found!r:.200}"
            if mine:
                _expect_too_large(session.get(owner.state_id, *[mine[0].key] * 20))
            session.ping()


def _expect_too_large(found: Values | Failure) -> None:
    code = found.code if isinstance(found, Failure) else found.results[0]
    if code != Code.TOO_LARGE:
        raise Violation(f"P-GET-8: {found!r:.200} for an answer that does not fit a frame")


@law("P-REQ-2", "P-GET-1", "P-REQ-1")
@examples(0.3)
@given(data=st.data())
def test_an_owner_answers_every_request_once(subject: ServerSubject, data: st.DataObject) -> None:
    """Requests in flight together at a state server are each answered once, each with its own answer."""
    found = state("temperature")
    entries = [entry for entry in found.entries if entry.namespace is None]
    with owner_sessions(subject, found.name) as owners:
        for owner, session in owners:
            mine = [entry for entry in entries if _is_at(owner, entry.key)]
            picked = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=30))
            numbers = [_asked(session, owner, entry.key) for entry in picked]
            for number, entry in reversed(list(zip(numbers, picked, strict=True))):
                values = session.answer(number)
                assert isinstance(values, Values), f"{values} for {entry.key!r}"
                check_answer(found, entry, values.results[0])
            session.end()


def _asked(session: Session, owner: Owner, key: Key) -> int:
    return session.ask(Type.GET, DEADLINE_MS, owner.state_id, None, {}, (key,))


@law("P-REQ-4", "P-REQ-3", "P-MSG-6")
def test_an_owner_tells_what_is_wrong_with_a_request(subject: ServerSubject) -> None:
    """A state server gives unsound requests the codes that a proxy gives them, and each fails alone."""
    with owner_sessions(subject, "temperature") as owners:
        owner, session = owners[0]
        state_id, many = owner.state_id, ("JFK",) * (LIMITS.max_keys + 1)
        cases: dict[str, tuple[tuple[Any, ...], Code]] = {
            "a float as deadline": ((Type.GET, 900, 1.0, state_id, None, {}, ("JFK",)), Code.MALFORMED),
            "no keys": ((Type.GET, 900, 1000, state_id, None, {}, ()), Code.MALFORMED),
            "a field more": ((Type.GET, 900, 1000, state_id, None, {}, ("JFK",), 1), Code.MALFORMED),
            "a nil key": ((Type.GET, 900, 1000, state_id, None, {}, (None,)), Code.WRONG_KEY_TYPE),
            "a float namespace": ((Type.GET, 900, 1000, state_id, 0.5, {}, ("JFK",)), Code.WRONG_KEY_TYPE),
            "too many keys": ((Type.GET, 900, 1000, state_id, None, {}, many), Code.TOO_LARGE),
            "an unknown type": ((55, 900), Code.UNSUPPORTED),
        }

        def check(case: tuple[tuple[Any, ...], Code]) -> None:
            payload, expected = case
            code = session.refused(pack(payload), 900)
            if code != expected:
                raise Violation(f"P-REQ-4: code {code} instead of {expected.name}")

        check_each(cases, check)
        session.ping()


@law("P-LOC-3", "P-GET-5")
def test_each_state_has_its_own_ids(subject: ServerSubject) -> None:
    """A state id names one state of one owner: no two owners that the proxy names share one."""
    with connect(subject) as session:
        ids = [owner.state_id for found in STATES for owner in located(session, found.name).owners]
    assert len(set(ids)) == len(ids), "P-LOC-3: two states have the same id"
