"""Laws of keys: their hash and group, as seen in who owns them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code
from qstate_conformance.corpus import corpus, value_of
from qstate_conformance.key_groups import Column, Key, group_of
from qstate_conformance.laws import law
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import GAP, JOB, MAX_PARALLELISM, STATES, State, key_types_of, state_by_key_types
from qstate_conformance.server.messages import Failure, Values, Violation
from qstate_conformance.server.probes import near_texts, owner_sessions
from qstate_conformance.server.wire import connect
from qstate_conformance.subjects import ServerSubject


@law("P-KEY-1", "P-KEY-3", "P-KEY-4", "P-KEY-5")
def test_the_keys_of_the_corpus_have_their_groups(subject: ServerSubject) -> None:
    """Each key of the golden corpus is held by the owner of the group that the corpus gives for it, and no other."""
    for item in corpus()["keys"]:
        key, group = value_of(item["key"]), item["group_of_128"]
        found = state_by_key_types(*key_types_of(key))
        if found is None:
            continue  # `any_key_has_the_group_of_its_hash` has columns of its type
        with owner_sessions(subject, found.name) as owners:
            for owner, session in owners:
                values = session.get(owner.state_id, key)
                answered = values.code if isinstance(values, Failure) else values.results[0]
                owned = answered != Code.KEY_GROUP_NOT_OWNED
                if owned != (owner.start <= group < owner.stop):
                    raise Violation(f"P-KEY-4: {key!r} has group {group}, but {owner} answered {values}")
                assert not owned or isinstance(answered, bytes), f"P-GET-1: {values} for {key!r} of {found.name}"


@law("P-KEY-1", "P-KEY-3", "P-KEY-4", "P-GET-5")
@given(data=st.data(), found=st.sampled_from([found for found in STATES if found.name != "blobs"]))
def test_any_key_has_the_group_of_its_hash(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """Any key is at the owner of its group: the signed XXH64 of its columns, from the seed 42, modulo the groups."""
    keys = data.draw(st.lists(strategies.keys_of(found.key_types), min_size=1, max_size=10))
    with owner_sessions(subject, found.name) as owners:
        for owner, session in owners:
            values = session.get(owner.state_id, *keys)
            results = (values.code,) * len(keys) if isinstance(values, Failure) else values.results
            for key, result in zip(keys, results, strict=True):
                group = group_of(key, MAX_PARALLELISM)
                owned = owner.start <= group < owner.stop
                if owned == (result == Code.KEY_GROUP_NOT_OWNED):
                    raise Violation(f"P-KEY-4: {key!r} has group {group}, but {owner} answered {result!r}")


@law("P-KEY-4", "P-GET-6")
@given(data=st.data(), found=st.sampled_from([found for found in STATES if found.name != "blobs"]))
def test_a_proxy_finds_the_group_of_any_key(subject: ServerSubject, data: st.DataObject, found: State) -> None:
    """A proxy finds the owner of every key that has one, and says so of those that have none."""
    keys = data.draw(st.lists(strategies.keys_of(found.key_types), min_size=1, max_size=10))
    homeless = [GAP[0] <= group_of(key, MAX_PARALLELISM) < GAP[1] for key in keys]
    with connect(subject) as session:
        # A key without an owner costs the whole deadline, so such keys are asked for with a short one.
        values = session.get((JOB, found.name), *keys, deadline_ms=40 if any(homeless) else 10_000)
    if isinstance(values, Failure):
        assert any(homeless) and values.code in (Code.UNKNOWN_KEY_GROUP_LOCATION, Code.DEADLINE_EXCEEDED), f"{values}"
        return
    assert isinstance(values, Values)
    for key, lost, result in zip(keys, homeless, values.results, strict=True):
        if lost and result != Code.UNKNOWN_KEY_GROUP_LOCATION:
            raise Violation(f"P-GET-6: {result!r} for {key!r}, whose group has no owner")
        if not lost and result == Code.UNKNOWN_KEY_GROUP_LOCATION:
            raise Violation(f"P-KEY-4: {key!r} has an owner, but the proxy found none")


@law("P-KEY-5", "P-GET-3")
def test_keys_are_taken_as_they_are(subject: ServerSubject) -> None:
    """A key that differs from one with a value in case, space, length or a bit anywhere has no value itself."""
    with connect(subject) as session:
        for found in STATES:
            held = {entry.key for entry in found.entries if entry.namespace is None}
            near = [key for key in {near for key in held for near in _near(key)} - held if not _is_lost(key)]
            for start in range(0, len(near), _KEYS_AT_ONCE):
                keys = near[start : start + _KEYS_AT_ONCE]
                values = session.get((JOB, found.name), *keys)
                assert isinstance(values, Values), f"{values!r:.200} for keys of {found.name}"
                for key, result in zip(keys, values.results, strict=True):
                    if result is not None:
                        raise Violation(f"P-KEY-5: {result!r:.200} for {key!r} of {found.name}, which has no value")


#: So many keys of any kind fit a frame.
_KEYS_AT_ONCE = 200


def _is_lost(key: Key) -> bool:
    return GAP[0] <= group_of(key, MAX_PARALLELISM) < GAP[1]


def _near(key: Key) -> set[Key]:
    """Keys of the same types that a careless comparison takes for this one."""
    if not isinstance(key, tuple):
        return {*_near_columns(key)}
    columns = enumerate(map(_near_columns, key))
    return {(*key[:place], near, *key[place + 1 :]) for place, found in columns for near in found}


def _near_columns(column: Column) -> set[Column]:
    if isinstance(column, str):
        return {*near_texts(column)}
    if isinstance(column, bytes):
        return {column + b"\0", b"\0" + column, column[:-1], column.swapcase(), column + column[-1:]}
    if isinstance(column, bool):
        return {not column}
    if isinstance(column, Decimal):
        return {-column, column + Decimal("0.01"), column - Decimal("0.01")}
    if isinstance(column, datetime):
        return {column + timedelta(microseconds=1), column + timedelta(hours=1), column.replace(year=2001)}
    if isinstance(column, date):
        return {column + timedelta(days=1), column + timedelta(days=7)}
    near = {column ^ (1 << bit) for bit in range(63)} | {-column, ~column, column + 1, column - 1}
    return {number for number in near if -(1 << 63) <= number < 1 << 63}


@law("P-KEY-5", "P-KEY-3")
def test_text_is_not_normalized(subject: ServerSubject) -> None:
    """Two forms of the same text are two keys: one has the value, the other is absent."""
    composed, decomposed = "Zürich", "Zu\u0308rich"
    with connect(subject) as session:
        values = session.get((JOB, "temperature"), composed, decomposed)
    assert isinstance(values, Values), f"{values} for two forms of a text"
    assert values.results[0] is not None and values.results[1] is None, f"P-KEY-5: {values}"
