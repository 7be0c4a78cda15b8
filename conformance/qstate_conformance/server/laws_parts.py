"""Laws of parts: entries, pages, slices, sizes and pieces of a value are those of the answer that a Get gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key, group_of
from qstate_conformance.laws import law
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import (
    COMMITTED_EPOCH,
    LIMITS,
    LIVE_EPOCH,
    MAX_PARALLELISM,
    OWNED,
    Entry,
    State,
)
from qstate_conformance.server.messages import Failure, Part, Values, Violation
from qstate_conformance.server.packing import elements_of, pack, pairs_of
from qstate_conformance.server.probes import TEMPERATURE, check_answer, check_each, owner_sessions, target_of
from qstate_conformance.server.wire import DEADLINE_MS, Session, Target, connect
from qstate_conformance.subjects import ServerSubject

_COMMITTED = {"isolation": "committed"}
_LISTS = [found for found in fixture.STATES if found.kind == "list"]
_MAPS = [found for found in fixture.STATES if found.kind == "map"]
_BLOBS = fixture.state("blobs")
_MOST_PIECES = 10_000
#: The first that is larger than any.
_ALL = (1 << 63) - 1


def _ask(
    session: Session,
    target: Target,
    part: str,
    key: Key,
    *,
    namespace: Any = None,
    options: Any = None,
    map_keys: tuple[Any, ...] = (),
    after: Any = None,
    start: int = 0,
    length: int = 0,
    deadline_ms: int = DEADLINE_MS,
) -> Part | Failure:
    fields = (deadline_ms, target, namespace, options or {}, key, part, map_keys, after, start, length)
    found = session.exchange(Type.GET_PART, *fields)
    assert isinstance(found, Part | Failure)
    return found


def _part(session: Session, target: Target, part: str, key: Key, **fields: Any) -> Part:
    found = _ask(session, target, part, key, **fields)
    if not isinstance(found, Part):
        raise Violation(f"P-PART-1: {found} for the part {part} of {key!r} in {target!r} with {fields}")
    return found


@contextmanager
def _serving(subject: ServerSubject) -> Iterator[Session | None]:
    """A session with a server that announces parts; None without the feature."""
    with connect(subject) as session:
        yield session if "parts" in session.welcome.features else None


def _expect(found: Part | Failure, *codes: Code) -> None:
    if not isinstance(found, Failure) or found.code not in codes:
        raise Violation(f"P-PART-6: {found!r:.200}, where {', '.join(code.name for code in codes)} was expected")


def _cases(states: list[State], *, committed: bool = False) -> Iterator[tuple[State, Entry, dict[str, Any]]]:
    """Each entry of these states, and what a part of it is asked for with."""
    for state in states:
        for entry in state.committed if committed else state.entries:
            yield state, entry, {"namespace": entry.namespace, "options": _COMMITTED if committed else {}}


def _sources(subject: ServerSubject, session: Session, state: State, key: Key) -> Iterator[tuple[Session, Target]]:
    """The proxy, and the owner of the key."""
    yield session, target_of(state)
    with owner_sessions(subject, state.name) as owners:
        group = group_of(key, MAX_PARALLELISM)
        yield from ((one, owner.state_id) for owner, one in owners if owner.start <= group < owner.stop)


def _check_epoch(part: Part, committed: bool) -> None:
    epoch = COMMITTED_EPOCH if committed else LIVE_EPOCH
    if part.epoch != epoch:
        raise Violation(f"P-PART-7: epoch {part.epoch} instead of {epoch}")


@law("P-PART-1", "P-PART-7")
def test_a_slice_has_the_elements_between_two_positions(subject: ServerSubject) -> None:
    """Every slice of a list has its elements, byte for byte and in order, at the proxy and at the owners."""
    with _serving(subject) as session:
        for committed in (False, True) if session else ():
            for state, entry, fields in _cases(_LISTS, committed=committed):
                elements = elements_of(state.answer_of(entry))
                assert session is not None
                for source, target in _sources(subject, session, state, entry.key):
                    for start, length in (
                        (0, _ALL),
                        (0, 1),
                        (1, 2),
                        (len(elements) - 1, 9),
                        (len(elements), 1),
                        (0, 0),
                    ):
                        found = _part(source, target, "slice", entry.key, start=start, length=length, **fields)
                        _check_epoch(found, committed)
                        wanted = elements[start : start + length]
                        if (elements_of(found.result) if found.result else []) != wanted or found.result == b"\x90":
                            raise Violation(f"P-PART-1: {found} for {length} elements from {start} of {elements}")


@law("P-PART-1", "P-PART-7")
def test_entries_are_those_that_are_there(subject: ServerSubject) -> None:
    """Of the map keys asked for, the answer has the entries that exist, once each, nulls too, and no others."""
    with _serving(subject) as session:
        for committed in (False, True) if session else ():
            for state, entry, fields in _cases(_MAPS, committed=committed):
                pairs = dict(pairs_of(state.answer_of(entry)))
                map_keys = [map_key for map_key, _ in entry.contents]  # type: ignore[misc]
                assert session is not None
                for source, target in _sources(subject, session, state, entry.key):
                    for asked in (map_keys, map_keys[:1], [*map_keys, *map_keys, "no entry"], ["no entry", -1]):
                        found = _part(source, target, "entries", entry.key, map_keys=tuple(asked), **fields)
                        _check_epoch(found, committed)
                        wanted = {one: pairs[one] for one in map(pack, asked) if one in pairs}
                        told = pairs_of(found.result) if found.result is not None else []
                        if sorted(told) != sorted(wanted.items()) or (found.result is not None and not told):
                            raise Violation(f"P-PART-1: {found} for the entries {asked} of {pairs}")


@law("P-PART-1", "P-PART-2", "P-PART-7")
def test_pages_have_each_entry_once_in_order(subject: ServerSubject) -> None:
    """Page after page, a map's entries come in the order of their encoded map keys, after any map key."""
    with _serving(subject) as session:
        for committed in (False, True) if session else ():
            for state, entry, fields in _cases(_MAPS, committed=committed):
                ordered = sorted(pairs_of(state.answer_of(entry)))
                assert session is not None
                for source, target in _sources(subject, session, state, entry.key):
                    for length in (1, 2, _ALL):
                        page_after = partial(_part, source, target, "page", entry.key, length=length, **fields)
                        _check_pages(page_after, ordered, length)
                    for after in ("", "LAX", "L", "~", -1, ("A", 1), ("A", 0)):
                        found = _part(source, target, "page", entry.key, after=after, length=_ALL, **fields)
                        wanted = [pair for pair in ordered if pair[0] > pack(after)]
                        _check_entries(found, wanted)


def _check_pages(page_after: Callable[..., Part], ordered: list[tuple[bytes, bytes]], length: int) -> None:
    after, told = None, []
    for _ in range(_MOST_PIECES):
        page = page_after(after=after)
        entries = pairs_of(page.result) if page.result is not None else []
        if len(entries) > length:
            raise Violation(f"P-PART-1: {len(entries)} entries where {length} were asked for")
        told += entries
        if page.after is None:
            break
        if after is not None and pack(page.after) <= pack(after):
            raise Violation(f"P-PART-2: {page} goes on before {after!r}")
        after = page.after
    if sorted(told) != ordered or [map_key for map_key, _ in told] != [map_key for map_key, _ in sorted(told)]:
        raise Violation(f"P-PART-2: the pages have {told}, the map has {ordered}")


def _check_entries(found: Part, wanted: list[tuple[bytes, bytes]]) -> None:
    told = pairs_of(found.result) if found.result is not None else []
    if sorted(told) != wanted or (found.result is not None and not told):
        raise Violation(f"P-PART-1: {found}, where {wanted} come after the map key")


@law("P-PART-1", "P-PART-7")
def test_the_size_is_the_number_of_elements_or_entries(subject: ServerSubject) -> None:
    """The size of a list or map is the number of what a Get answers, 0 without a value, and no result comes with it."""
    with _serving(subject) as session:
        for state in (*_LISTS, *_MAPS) if session else ():
            assert session is not None
            nothing = _part(session, target_of(state), "size", state.absent)
            assert (nothing.total, nothing.result) == (0, None), f"P-PART-1: {nothing} without a value"
        for committed in (False, True) if session else ():
            for state, entry, fields in _cases([*_LISTS, *_MAPS], committed=committed):
                answer = state.answer_of(entry)
                count = len(elements_of(answer)) if state.kind == "list" else len(pairs_of(answer))
                assert session is not None
                for source, target in _sources(subject, session, state, entry.key):
                    found = _part(source, target, "size", entry.key, **fields)
                    _check_epoch(found, committed)
                    assert (found.total, found.result) == (count, None), f"P-PART-1: {found} for the size {count}"


@law("P-PART-1", "P-PART-4", "P-PART-7")
def test_pieces_make_the_whole_answer(subject: ServerSubject) -> None:
    """Pieces of any length, of one version, are the bytes that a Get answers; another value has another version."""
    with _serving(subject) as session:
        versions: dict[bytes, bytes] = {}
        for state, entry, fields in _cases([one for one in fixture.STATES if one is not _BLOBS]) if session else ():
            assert session is not None
            target = target_of(state)
            whole = session.get(target, entry.key, namespace=entry.namespace)
            assert isinstance(whole, Values) and isinstance(whole.results[0], bytes)
            found = _whole(session, target, entry.key, 3 if len(whole.results[0]) < 50 else 100, fields)
            check_answer(state, entry, found[0])
            if state.kind != "map" and found[0] != whole.results[0]:
                raise Violation(f"P-PART-1: the pieces are {found[0].hex()}, a Get answers {whole.results[0].hex()}")
            if versions.setdefault(found[1], found[0]) != found[0]:
                raise Violation(f"P-PART-4: {found[0].hex()} and {versions[found[1]].hex()} have one version")
            nothing = _part(session, target, "bytes", state.absent, length=100)
            assert (nothing.result, nothing.total) == (None, 0), f"P-PART-1: {nothing} without a value"


def _whole(session: Session, target: Target, key: Key, length: int, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    """The bytes of all pieces, and their version."""
    data, versions = b"", set()
    for _ in range(_MOST_PIECES):
        found = _part(session, target, "bytes", key, start=len(data), length=length, **fields)
        versions.add((found.version, found.fingerprint, found.total))
        data += found.result or b""
        if len(versions) > 1:
            raise Violation(f"P-PART-4: {versions} in the pieces of a value that does not change")
        if found.result is None or len(found.result) > length or (not found.result and len(data) < found.total):
            raise Violation(f"P-PART-3: {found!r:.200} for {length} bytes from {len(data)}")
        if len(data) >= found.total:
            assert len(data) == found.total, f"P-PART-1: {len(data)} bytes of {found.total}"
            return data, found.version
    raise Violation(f"P-PART-3: the pieces of {key!r} have no end")


@law("P-PART-3", "P-PART-4", "P-GET-8")
def test_a_value_larger_than_a_frame_comes_in_pieces(subject: ServerSubject) -> None:
    """A value that no Get can have is read in pieces, each of which fits a frame and the request's `max_bytes`."""
    with _serving(subject) as session:
        if session is None:
            return
        large = next(entry for entry in _BLOBS.entries if len(_BLOBS.answer_of(entry)) > LIMITS.max_frame)
        refused = session.get(target_of(_BLOBS), large.key)
        assert isinstance(refused, Failure) and refused.code == Code.TOO_LARGE, f"P-GET-8: {refused!r:.100}"
        for source, target in _sources(subject, session, _BLOBS, large.key):
            data, _ = _whole(source, target, large.key, _ALL, {})
            assert data == _BLOBS.answer_of(large), "P-PART-1: other bytes than the value's"
            small = _part(source, target, "bytes", large.key, length=_ALL, options={"max_bytes": 5000})
            assert 0 < len(small.result or b"") <= 5000, f"P-PART-3: {len(small.result or b'')} bytes, within 5000"
        with connect(subject, max_frame=4096) as narrow:
            assert _whole(narrow, target_of(_BLOBS), large.key, _ALL, {})[0] == _BLOBS.answer_of(large)


@law("P-PART-6", "P-PART-7")
def test_a_part_that_cannot_be_given_fails_by_code(subject: ServerSubject) -> None:
    """Parts of other kinds, unknown parts, no map keys, wrong types, other owners, and demands that are not met."""
    list_state, map_state = _LISTS[0], _MAPS[0]
    of_list, of_map = target_of(list_state), target_of(map_state)
    key = map_state.entries[0].key
    with _serving(subject) as session:
        if session is None:
            return
        asked: dict[str, tuple[Target, str, Key, dict[str, Any], Code]] = {
            "a slice of a map": (of_map, "slice", key, {"length": 1}, Code.UNSUPPORTED),
            "a page of a list": (of_list, "page", key, {"length": 1}, Code.UNSUPPORTED),
            "entries of a value": (TEMPERATURE, "entries", key, {"map_keys": ("a",)}, Code.UNSUPPORTED),
            "the size of a value": (TEMPERATURE, "size", key, {}, Code.UNSUPPORTED),
            "an unknown part": (of_map, "half", key, {"length": 1}, Code.UNSUPPORTED),
            "an unknown option": (of_map, "size", key, {"options": {"colour": 1}}, Code.UNSUPPORTED),
            "no map keys": (of_map, "entries", key, {}, Code.MALFORMED),
            "a page of nothing": (of_map, "page", key, {"length": 0}, Code.MALFORMED),
            "a map key that is none": (of_map, "entries", key, {"map_keys": (1.5,)}, Code.WRONG_KEY_TYPE),
            "a place that is none": (of_map, "page", key, {"after": 1.5, "length": 1}, Code.WRONG_KEY_TYPE),
            "too many map keys": (of_map, "entries", key, {"map_keys": (1,) * 10_001}, Code.TOO_LARGE),
            "another key type": (of_map, "size", 5, {}, Code.WRONG_KEY_TYPE),
            "no such state": ((fixture.JOB, "no such state"), "size", key, {}, Code.UNKNOWN_STATE),
            "no such job": (("no such job", "visits"), "size", key, {}, Code.UNKNOWN_JOB),
            "a state id at a proxy": (bytes(16), "size", key, {}, Code.UNSUPPORTED),
            "no owner": (
                of_map,
                "size",
                map_state.homeless,
                {"options": {"wait_ms": 50}},
                Code.UNKNOWN_KEY_GROUP_LOCATION,
            ),
            "a later epoch": (
                of_map,
                "size",
                key,
                {"options": {"min_epoch": LIVE_EPOCH + 1, "wait_ms": 50}},
                Code.EPOCH_NOT_REACHED,
            ),
            "no time": (of_map, "size", key, {"deadline_ms": 0}, Code.DEADLINE_EXCEEDED),
        }

        def check(case: tuple[Target, str, Key, dict[str, Any], Code]) -> None:
            target, part, of, fields, code = case
            _expect(_ask(session, target, part, of, **fields), code)

        check_each(asked, check)
        with owner_sessions(subject, map_state.name) as owners:
            for owner, direct in owners:
                elsewhere = next(groups for groups in OWNED if groups != (owner.start, owner.stop))
                strange = fixture.key_with_owner("strange", map_state.key_types, OWNED.index(elsewhere))
                _expect(_ask(direct, owner.state_id, "size", strange), Code.KEY_GROUP_NOT_OWNED)
                _expect(_ask(direct, bytes(16), "size", strange), Code.UNKNOWN_STATE_ID)
                _expect(_ask(direct, of_map, "size", strange), Code.UNSUPPORTED)
