"""Laws of Get at a proxy: the fixture's values byte for byte, in the order of the keys, and every refusal."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import (
    COMMITTED_EPOCH,
    JOB,
    LIMITS,
    LIVE_EPOCH,
    MOVED,
    NAMES,
    OWNED,
    STATES,
    UNREACHABLE,
    Entry,
    State,
    key_with_owner,
    state,
)
from qstate_conformance.server.messages import Description, Failure, Values, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import (
    TEMPERATURE,
    ask_known,
    check_answer,
    check_each,
    check_known,
    many_keys,
    near_texts,
    owner_sessions,
    target_of,
)
from qstate_conformance.server.wire import DEADLINE_MS, Session, Target, connect
from qstate_conformance.subjects import ServerSubject

#: Long enough to be met, short enough to wait for.
_SHORT_MS = 150
_BLOBS = (JOB, "blobs")
_SMALL_STATES = [found for found in STATES if found.name != "blobs"]
_DISTANCE = state("distance")


def _blob(name: str) -> Entry:
    return next(entry for entry in state("blobs").entries if entry.key == key_with_owner(name, ("string",)))


def _expect(found: Any, *codes: Code) -> None:
    if not isinstance(found, Failure) or found.code not in codes:
        raise Violation(f"{found} instead of {' or '.join(code.name for code in codes)}")


def _expect_for_each_key(found: Values | Failure, *codes: Code) -> None:
    """All keys have one of these codes: key by key, or all at once."""
    answered = (found.code,) if isinstance(found, Failure) else found.results
    if not set(answered) <= set(codes):
        raise Violation(f"{found} instead of {' or '.join(code.name for code in codes)} for each key")


@law("P-GET-1", "P-GET-2", "P-VALUE-1", "P-KEY-1")
def test_every_entry_of_the_fixture_is_answered_byte_for_byte(subject: ServerSubject) -> None:
    """Each state of the five kinds gives for each key, in each namespace, the bytes that it holds, and their epoch."""
    with connect(subject) as session:
        for found in _SMALL_STATES:
            for entry in found.entries:
                values = session.get(target_of(found), entry.key, namespace=entry.namespace)
                assert isinstance(values, Values), f"{values} for {found.name}[{entry.key!r}]"
                check_answer(found, entry, values.results[0])
                assert values.epochs == (LIVE_EPOCH,), (
                    f"P-GET-2: epoch {values.epochs[0]} for {found.name}[{entry.key!r}]"
                )


@law("P-GET-1", "P-GET-2", "P-GET-3")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_results_are_in_the_order_of_the_keys(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """A Get of several keys, present, absent and repeated, has one result for each, in their order."""
    namespace = data.draw(st.sampled_from([entry.namespace for entry in found.entries]))
    # By their bytes: in Python, the namespace True equals 1.
    here = {entry.key: entry for entry in found.entries if pack(entry.namespace) == pack(namespace)}
    keys = data.draw(st.lists(st.sampled_from([*here, found.absent]), min_size=1, max_size=20))
    with connect(subject) as session:
        values = session.get(target_of(found), *keys, namespace=namespace)
    assert isinstance(values, Values), f"{values} for {keys}"
    for key, epoch, result in zip(keys, values.epochs, values.results, strict=True):
        if key in here:
            check_answer(found, here[key], result)
            assert epoch == LIVE_EPOCH, f"P-GET-2: epoch {epoch} for {key!r}"
        else:
            assert result is None, f"P-GET-3: {result!r} for {key!r}, which has no value"


@law("P-GET-3", "P-GET-2")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_a_key_without_a_value_is_nil(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """A key without a value, or with one in another namespace only, is nil and no failure."""
    namespace = data.draw(st.sampled_from([None, "unused", 61, (1, 2), b"\0"]))
    keys = data.draw(st.lists(st.sampled_from([entry.key for entry in found.entries]), min_size=1, max_size=5))
    with connect(subject) as session:
        values = session.get(target_of(found), found.absent, *keys, namespace=namespace)
    assert isinstance(values, Values), f"P-GET-3: {values} for a key without a value"
    assert values.results[0] is None, f"P-GET-3: {values.results[0]!r} for a key without a value"
    assert namespace is None or set(values.results) == {None}, f"{values} in a namespace without values"


@law("P-GET-3", "P-GET-1")
def test_a_value_of_no_bytes_is_not_nil(subject: ServerSubject) -> None:
    """The result for a value whose serializer wrote no bytes is empty binary, not nil."""
    with connect(subject) as session:
        found = session.get((JOB, "label"), key_with_owner("empty", ("bigint",)))
    assert isinstance(found, Values) and found.results == (b"",), f"P-GET-3: {found} for a value of no bytes"


@law("P-GET-6")
@given(name=strategies.names, which=st.sampled_from(["get", "locate", "describe"]))
def test_an_unknown_job_is_unknown(subject: ServerSubject, name: str, which: str) -> None:
    """Every request about a job that the proxy does not serve is UNKNOWN_JOB."""
    job = f"{name[:39]}?" if name == JOB else name
    with connect(subject) as session:
        if which == "get":
            _expect(session.get((job, "temperature"), "JFK"), Code.UNKNOWN_JOB)
        elif which == "locate":
            _expect(session.locate(job, "temperature"), Code.UNKNOWN_JOB)
        else:
            _expect(session.describe(job), Code.UNKNOWN_JOB)


@law("P-GET-6")
@given(name=strategies.names, which=st.sampled_from(["get", "locate"]))
def test_an_unknown_state_is_unknown(subject: ServerSubject, name: str, which: str) -> None:
    """A state that the job does not have is UNKNOWN_STATE."""
    wanted = f"{name[:39]}?" if name in NAMES else name
    with connect(subject) as session:
        found = session.get((JOB, wanted), "JFK") if which == "get" else session.locate(JOB, wanted)
        _expect(found, Code.UNKNOWN_STATE)


@law("P-GET-6", "P-MSG-5")
def test_names_are_taken_as_they_are(subject: ServerSubject) -> None:
    """A name that differs in a letter's case, in space around it, in its end or its Unicode form is another one."""
    with connect(subject) as session:
        for job in near_texts(JOB):
            _expect(session.get((job, "temperature"), "JFK"), Code.UNKNOWN_JOB)
            _expect(session.locate(job, "temperature"), Code.UNKNOWN_JOB)
            _expect(session.describe(job), Code.UNKNOWN_JOB)
        for name in {near for found in STATES for near in near_texts(found.name)} - NAMES:
            _expect(session.get((JOB, name), "JFK"), Code.UNKNOWN_STATE)
            _expect(session.locate(JOB, name), Code.UNKNOWN_STATE)


@law("P-GET-6", "P-GET-2", "P-LOC-2")
@examples(0.1)
@given(found=st.sampled_from(_SMALL_STATES), position=st.integers(0, 2))
def test_a_key_without_an_owner_has_no_location(subject: ServerSubject, found: State, position: int) -> None:
    """A key whose group has no owner is UNKNOWN_KEY_GROUP_LOCATION when its time is over; others are answered."""
    entry = next(entry for entry in found.entries if entry.namespace is None)
    keys = [entry.key, found.absent]
    keys.insert(position, found.homeless)
    with connect(subject) as session:
        values = session.get(target_of(found), *keys, deadline_ms=_SHORT_MS)
        alone = session.get(target_of(found), found.homeless, deadline_ms=1)
    assert isinstance(values, Values), f"P-GET-6: {values} for keys of which one has no owner"
    results = dict(zip(keys, zip(values.epochs, values.results, strict=True), strict=True))
    assert results[found.homeless] == (-1, Code.UNKNOWN_KEY_GROUP_LOCATION), f"P-GET-6: {values}"
    check_answer(found, entry, results[entry.key][1])
    assert results[found.absent][1] is None
    _expect_for_each_key(alone, Code.UNKNOWN_KEY_GROUP_LOCATION, Code.DEADLINE_EXCEEDED)


@law("P-GET-7", "P-KEY-1", "P-KEY-7", "P-REQ-4")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_a_key_of_other_types_is_refused(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """A Get with a key of other types than the state's is WRONG_KEY_TYPE as a whole, wherever its keys belong."""
    sound = [entry.key for entry in found.entries][:3]
    keys = [*sound, found.homeless]
    keys.insert(data.draw(st.integers(0, len(keys))), data.draw(strategies.other_keys(found.key_types)))
    with connect(subject) as session:
        _expect(session.get(target_of(found), *keys, deadline_ms=_SHORT_MS), Code.WRONG_KEY_TYPE)
        session.ping()


@law("P-GET-7", "P-KEY-1")
def test_a_key_of_very_many_columns_is_of_a_wrong_type(subject: ServerSubject) -> None:
    """A key of more columns than any state has is WRONG_KEY_TYPE."""
    with connect(subject) as session:
        check_each(
            {f"{count} columns": count for count in (2, 64, 65, LIMITS.max_keys + 1, 1000)},
            lambda count: _expect(session.get(TEMPERATURE, (1,) * count, deadline_ms=_SHORT_MS), Code.WRONG_KEY_TYPE),
        )


@law("P-REQ-4", "P-KEY-1", "P-KEY-2", "P-KEY-6")
@given(data=st.data(), found=st.sampled_from(_SMALL_STATES))
def test_what_is_no_key_is_refused(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """Nil, floats, maps, nested arrays, arrays of one, larger integers and other extension types are no keys."""
    keys: list[Any] = [entry.key for entry in found.entries][:2]
    keys.insert(data.draw(st.integers(0, len(keys))), data.draw(strategies.not_keys))
    with connect(subject) as session:
        _expect(session.get(target_of(found), *keys), Code.WRONG_KEY_TYPE)
        session.ping()


@law("P-REQ-4", "P-KEY-2")
@given(data=st.data())
def test_what_is_no_namespace_is_refused(subject: ServerSubject, data: st.DataObject) -> None:
    """A namespace is nil or a key; anything else is WRONG_KEY_TYPE."""
    namespace = data.draw(strategies.not_keys.filter(lambda found: found is not None))
    with connect(subject) as session:
        _expect(session.get(TEMPERATURE, "JFK", namespace=namespace), Code.WRONG_KEY_TYPE)
        session.ping()


@law("P-GET-4", "P-REQ-4", "P-VERSION-3")
@given(
    name=strategies.names.filter(lambda name: name not in ("isolation", "min_epoch", "max_staleness_ms")),
    value=st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | strategies.texts | st.floats(-1, 1),
    known=st.booleans(),
)
def test_an_unknown_option_is_not_ignored(subject: ServerSubject, name: str, value: Any, known: bool) -> None:
    """An option that the server does not know is UNSUPPORTED, alone and beside one that it knows."""
    options = {name: value} | ({"isolation": "live"} if known else {})
    with connect(subject) as session:
        _expect(session.get(TEMPERATURE, "JFK", options=options), Code.UNSUPPORTED)
        session.ping()


@law("P-GET-4", "P-REQ-4")
@given(value=st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | strategies.texts | st.floats(-1, 1))
def test_an_unknown_isolation_is_not_ignored(subject: ServerSubject, value: Any) -> None:
    """A value of the option isolation that is neither live nor committed is UNSUPPORTED."""
    with connect(subject) as session:
        _expect(session.get(TEMPERATURE, "JFK", options={"isolation": value}), Code.UNSUPPORTED)
        _expect(session.get(TEMPERATURE, "JFK", options={"isolation": "Live"}), Code.UNSUPPORTED)


@law("P-GET-4", "P-GET-2")
def test_committed_reads_are_served_by_states_that_offer_them(subject: ServerSubject) -> None:
    """The committed isolation gives the committed epoch where the description offers it, and UNSUPPORTED elsewhere."""
    with connect(subject) as session:
        offering = _states_that_offer(session, "committed_reads")
        for found in _SMALL_STATES:
            entry = found.entries[0]
            get = session.get(
                target_of(found), entry.key, namespace=entry.namespace, options={"isolation": "committed"}
            )
            if found.name not in offering:
                _expect(get, Code.UNSUPPORTED)
                continue
            assert isinstance(get, Values), f"P-GET-4: {get} for a committed read of {found.name}"
            check_answer(found, entry, get.results[0])
            assert get.epochs == (COMMITTED_EPOCH,), f"P-GET-2: {get.epochs} for a committed read"


@law("P-GET-14", "P-GET-2", "P-GET-3")
def test_a_committed_read_shows_nothing_of_a_later_epoch(subject: ServerSubject) -> None:
    """Only live reads show the writes of an uncommitted epoch: values, elements, map entries and deletes."""
    with connect(subject) as session:
        offering = _states_that_offer(session, "committed_reads")
        for found in _SMALL_STATES:
            for namespace in {before.namespace for before in found.before}:
                keys = [before.key for before in found.before if before.namespace == namespace]
                _check_all(session, found, namespace, keys, committed=False)
                if found.name in offering:
                    _check_all(session, found, namespace, keys, committed=True)


def _check_all(session: Session, found: State, namespace: Key | None, keys: list[Key], *, committed: bool) -> None:
    """The keys have in this namespace what is held, and the epoch; the others among them have nothing."""
    held, epoch = (found.committed, COMMITTED_EPOCH) if committed else (found.entries, LIVE_EPOCH)
    options = {"isolation": "committed" if committed else "live"}
    values = session.get(target_of(found), *keys, namespace=namespace, options=options)
    assert isinstance(values, Values), f"P-GET-14: {values} for {keys} of {found.name} with {options}"
    assert set(values.epochs) == {epoch}, f"P-GET-14: {values.epochs} for {keys} of {found.name} with {options}"
    here = {entry.key: entry for entry in held if entry.namespace == namespace}
    for key, result in zip(keys, values.results, strict=True):
        if key in here:
            check_answer(found, here[key], result)
        elif result is not None:
            raise Violation(f"P-GET-14: {result!r} for {key!r} of {found.name} with {options}, which has no value")


def _states_that_offer(session: Session, capability: str) -> set[str]:
    found = session.describe(JOB)
    assert isinstance(found, Description), f"{found} for a Describe"
    return {entry["name"] for entry in found.entries if capability in entry["capabilities"]}


@law("P-GET-1", "P-REQ-4")
@examples(0.2)
@given(count=st.integers(1, LIMITS.max_keys))
def test_as_many_keys_may_be_asked_for_as_the_welcome_says(subject: ServerSubject, count: int) -> None:
    """A Get of up to max_keys keys has a result for each; a repeated key has a result each time."""
    held = {entry.key: entry.contents for entry in _DISTANCE.entries if entry.namespace is None}
    present, absent = next(iter(held)), _DISTANCE.absent
    keys = [present if number % 3 else absent for number in range(count - 1)] + [present]
    with connect(subject) as session:
        found = session.get(target_of(_DISTANCE), *keys)
    assert isinstance(found, Values), f"{found} for {count} keys"
    assert found.results == tuple(map(held.get, keys)), f"P-GET-1: {found!r:.200} for {count} keys"


@law("P-GET-1", "P-GET-2", "P-GET-3")
def test_a_large_get_has_every_result_in_its_place(subject: ServerSubject) -> None:
    """A Get of max_keys keys, each with a value or without, has every result in its place, at a proxy and an owner."""
    with connect(subject) as session:
        _check_places(session, target_of(_DISTANCE), many_keys(OWNED))
    with owner_sessions(subject, _DISTANCE.name) as owners:
        for owner, session in owners:
            _check_places(session, owner.state_id, many_keys(((owner.start, owner.stop),)))


def _check_places(session: Session, target: Target, keys: list[int]) -> None:
    held = {entry.key: entry.contents for entry in _DISTANCE.entries if entry.namespace is None}
    found = session.get(target, *keys)
    assert isinstance(found, Values), f"P-GET-1: {found!r:.200} for {len(keys)} keys"
    for place, (key, epoch, result) in enumerate(zip(keys, found.epochs, found.results, strict=True)):
        if (epoch, result) != (LIVE_EPOCH, held.get(key)):
            raise Violation(f"P-GET-1: {result!r} of epoch {epoch} for {key}, number {place} of {len(keys)} keys")


@law("P-REQ-4", "P-REQ-3")
@examples(0.2)
@given(more=st.integers(1, 2000), target=st.sampled_from([TEMPERATURE, (JOB, "unknown"), b"0123456789abcdef"]))
def test_more_keys_than_the_limit_are_too_large(subject: ServerSubject, more: int, target: Any) -> None:
    """A Get of more than max_keys keys is TOO_LARGE, and the connection stays open."""
    with connect(subject) as session:
        code = session.refused(pack((Type.GET, 9, DEADLINE_MS, target, None, {}, (1,) * (LIMITS.max_keys + more))), 9)
        assert code == Code.TOO_LARGE, f"P-REQ-4: {code} for {LIMITS.max_keys + more} keys"
        session.ping()


@law("P-GET-8", "P-FRAME-2", "P-REQ-3")
def test_an_answer_over_the_frame_is_too_large(subject: ServerSubject) -> None:
    """An answer that would not fit a frame is TOO_LARGE, one that just fits is given, and the connection stays open."""
    fits, half, other, whole = (_blob(name) for name in ("fits", "half", "other half", "whole"))
    with connect(subject) as session:
        _expect_for_each_key(session.get(_BLOBS, whole.key), Code.TOO_LARGE)
        _expect(session.get(_BLOBS, half.key, other.key), Code.TOO_LARGE)
        _expect(session.get(_BLOBS, *[half.key] * 50), Code.TOO_LARGE)
        for entry in (fits, half, other):
            found = session.get(_BLOBS, entry.key)
            assert isinstance(found, Values) and found.results == (entry.contents,), f"P-GET-8: {found!r:.200}"


@law("P-GET-17", "P-GET-6", "P-DEADLINE-3")
def test_a_key_without_an_owner_keeps_the_others_waiting_no_longer_than_allowed(subject: ServerSubject) -> None:
    """A Get of keys with and without owners is answered soon after `wait_ms`, long before its deadline."""
    found = state("temperature")
    entry = next(one for one in found.entries if one.namespace is None)
    with connect(subject) as session:
        for wait_ms in (0, 100):
            began = time.monotonic()
            values = session.get(
                TEMPERATURE, entry.key, found.homeless, options={"wait_ms": wait_ms}, deadline_ms=60_000
            )
            took = time.monotonic() - began
            assert isinstance(values, Values), f"P-GET-17: {values}"
            check_answer(found, entry, values.results[0])
            assert values.results[1] == Code.UNKNOWN_KEY_GROUP_LOCATION, f"P-GET-6: {values}"
            assert took < 10, f"P-GET-17: the answer took {took:.1f} s"


@law("P-FRAME-2", "P-GET-8", "P-HELLO-5")
def test_no_answer_is_larger_than_the_client_takes(subject: ServerSubject) -> None:
    """To a client whose Hello sets a smaller `max_frame`, an answer over it is TOO_LARGE; others are given."""
    half = _blob("half")
    with connect(subject, max_frame=4096) as small, connect(subject, max_frame=(1 << 28) - 1) as large:
        _expect_for_each_key(small.get(_BLOBS, half.key), Code.TOO_LARGE)
        found = large.get(_BLOBS, half.key)
        assert isinstance(found, Values) and found.results == (half.contents,), f"P-GET-8: {found!r:.200}"
        check_known(small, ask_known(small))


@law("P-GET-6", "P-DEADLINE-3", "P-LOC-3", "P-RETRY-1")
def test_a_state_that_is_not_where_it_should_be_fails_in_time(subject: ServerSubject) -> None:
    """A Get of a state whose owner does not know its id, or cannot be reached, fails within its deadline, and alone."""
    codes = {
        MOVED: (Code.UNKNOWN_STATE_ID, Code.UNKNOWN_KEY_GROUP_LOCATION, Code.DEADLINE_EXCEEDED),
        UNREACHABLE: (Code.UNKNOWN_KEY_GROUP_LOCATION, Code.DEADLINE_EXCEEDED),
    }
    with connect(subject) as session:
        for name, allowed in codes.items():
            _expect_for_each_key(session.get((JOB, name), "JFK", deadline_ms=_SHORT_MS), *allowed)
            several = session.get((JOB, name), "JFK", "N14228", state("temperature").homeless, deadline_ms=_SHORT_MS)
            _expect_for_each_key(several, *allowed)
            session.ping()
