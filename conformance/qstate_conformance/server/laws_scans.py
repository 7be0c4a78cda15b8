"""Laws of scans: every key with a value once, in one order, page by page; of one epoch; nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key, group_of
from qstate_conformance.laws import law
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import (
    COMMITTED_EPOCH,
    GAP,
    JOB,
    LIMITS,
    LIVE_EPOCH,
    MAX_PARALLELISM,
    OWNED,
    Entry,
    State,
)
from qstate_conformance.server.messages import Description, Failure, Page, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import (
    TEMPERATURE,
    ask_known,
    check_answer,
    check_known,
    owner_sessions,
    target_of,
)
from qstate_conformance.server.wire import DEADLINE_MS, Session, Target, connect
from qstate_conformance.subjects import ServerSubject

#: Its values fill frames, all in one owner's key groups.
_LARGE, _LARGE_GROUPS = fixture.state("blobs"), OWNED[-1]
_SMALL_STATES = [found for found in fixture.STATES if found is not _LARGE]
_MOST_PAGES = 1000
_MOST_VIEWS = 10_000
_COMMITTED = {"isolation": "committed"}


def _scan(
    session: Session,
    target: Target,
    groups: tuple[int, int],
    *,
    namespaces: tuple[Any, ...] = (),
    prefix: Any = None,
    after: Any = None,
    view: bytes = b"",
    options: Any = None,
    deadline_ms: int = DEADLINE_MS,
) -> Page | Failure:
    fields = (deadline_ms, target, namespaces, prefix, *groups, after, view, options or {})
    found = session.exchange(Type.SCAN, *fields)
    assert isinstance(found, Page | Failure)
    return found


def _page(session: Session, target: Target, groups: tuple[int, int], **fields: Any) -> Page:
    found = _scan(session, target, groups, **fields)
    if not isinstance(found, Page):
        raise Violation(f"P-SCAN-1: {found} for a Scan of {target!r} in {groups} with {fields}")
    return found


def _pages(session: Session, target: Target, groups: tuple[int, int], **fields: Any) -> Iterator[Page]:
    """Every page of a scan."""
    start, stop = groups
    for _ in range(_MOST_PAGES):
        page = _page(session, target, (start, stop), **fields)
        yield page
        if page.next_group == stop:
            if page.after is not None or page.view:
                raise Violation(f"P-SCAN-2: {page} at the end of a scan")
            return
        if not start <= page.next_group < stop or (page.next_group, page.after) == (start, fields.get("after")):
            raise Violation(f"P-SCAN-2: {page} goes on at {page.next_group} of {start} to {stop}")
        start = page.next_group
        fields |= {"after": page.after, "view": page.view}
    raise Violation(f"P-SCAN-2: a scan of {target!r} has no end")


def _place(entry: Entry) -> tuple[int, bytes, bytes]:
    return group_of(entry.key, MAX_PARALLELISM), pack(entry.namespace), pack(entry.key)


def _within(entries: tuple[Entry, ...], groups: tuple[int, int]) -> list[Entry]:
    """The entries in these key groups, in the order of a scan."""
    inside = [entry for entry in entries if groups[0] <= _place(entry)[0] < groups[1]]
    return sorted(inside, key=_place)


def _check(pages: list[Page], expected: list[Entry], state: State, epoch: int) -> None:
    found: list[tuple[bytes, bytes]] = []
    results: list[bytes | int] = []
    for page in pages:
        if page.keys and page.epoch != epoch:
            raise Violation(f"P-SCAN-6: epoch {page.epoch}, not {epoch}, in a scan of {state.name}")
        if page.selected != len(page.keys):
            raise Violation(f"P-SCAN-2: {page.selected} selected keys, {len(page.keys)} keys")
        found += zip(map(pack, page.namespaces or (None,) * len(page.keys)), map(pack, page.keys), strict=True)
        results += page.results
    wanted = [_place(entry)[1:] for entry in expected]
    if found != wanted:
        raise Violation(f"P-SCAN-1: {found} in a scan of {state.name}, which holds {wanted}")
    for entry, result in zip(expected, results, strict=False):
        check_answer(state, entry, result)


def _offering(session: Session, *capabilities: str) -> set[str]:
    found = session.describe(JOB)
    assert isinstance(found, Description), f"{found} for a Describe"
    return {entry["name"] for entry in found.entries if set(capabilities) <= set(entry["capabilities"])}


@law("P-SCAN-1", "P-SCAN-2", "P-SCAN-4", "P-SCAN-5", "P-KEY-8")
def test_every_key_comes_once_in_order(subject: ServerSubject) -> None:
    """A live scan has every key with a value, once, in order, with the value of a Get; at the proxy and the owners."""
    for state in _SMALL_STATES:
        with connect(subject) as session, owner_sessions(subject, state.name) as owners:
            if state.name not in _offering(session, "scans"):
                continue
            for groups in OWNED:
                expected = _within(state.entries, groups)
                _check(list(_pages(session, target_of(state), groups)), expected, state, LIVE_EPOCH)
                for owner, direct in owners:
                    if (owner.start, owner.stop) == groups:
                        _check(list(_pages(direct, owner.state_id, groups)), expected, state, LIVE_EPOCH)


@law("P-SCAN-6", "P-SCAN-9")
def test_a_committed_scan_shows_the_committed_epoch(subject: ServerSubject) -> None:
    """A committed scan has what the last committed epoch left, and its number, whatever epoch runs."""
    with connect(subject) as session:
        offering = _offering(session, "scans", "committed_reads")
        for state in _SMALL_STATES:
            for groups in OWNED if state.name in offering else ():
                pages = list(_pages(session, target_of(state), groups, options=_COMMITTED))
                _check(pages, _within(state.committed, groups), state, COMMITTED_EPOCH)


@law("P-SCAN-2", "P-SCAN-10")
def test_a_scan_goes_on_from_any_place(subject: ServerSubject) -> None:
    """One key at a time, each scan from the place of the one before, gives what one scan gives."""
    with connect(subject) as session:
        offering = _offering(session, "scans")
        for state in _SMALL_STATES:
            for groups in OWNED if state.name in offering else ():
                pages: list[Page] = []
                place: tuple[int, Any] = (groups[0], None)
                while place[0] != groups[1]:
                    fields = {"after": place[1], "options": {"limit": 1}}
                    pages.append(_page(session, target_of(state), (place[0], groups[1]), **fields))
                    place = (pages[-1].next_group, pages[-1].after)
                    assert len(pages) < _MOST_PAGES, f"P-SCAN-2: a scan of {state.name} has no end"
                _check(pages, _within(state.entries, groups), state, LIVE_EPOCH)


@law("P-SCAN-2", "P-SCAN-3", "P-SCAN-6")
def test_values_that_fill_frames_come_on_several_pages(subject: ServerSubject) -> None:
    """Each page fits a frame; a value that fits none is TOO_LARGE, and the keys after it come."""
    with connect(subject) as session, owner_sessions(subject, _LARGE.name) as owners:
        if _LARGE.name not in _offering(session, "scans", "committed_reads"):
            return
        expected = _within(_LARGE.committed, _LARGE_GROUPS)
        sources: list[tuple[Session, Target, dict[str, int]]]
        sources = [(session, target_of(_LARGE), {}), (session, target_of(_LARGE), {"max_bytes": 30_000})]
        sources += [(one, owner.state_id, {}) for owner, one in owners if owner.start == _LARGE_GROUPS[0]]
        for source, target, options in sources:
            pages = list(_pages(source, target, _LARGE_GROUPS, options={**_COMMITTED, **options}))
            most = int(options.get("max_bytes", LIMITS.max_frame))
            assert options or len(pages) > 1, f"P-SCAN-3: {len(pages)} page for values of more than a frame"
            assert {page.epoch for page in pages} == {COMMITTED_EPOCH}, f"P-SCAN-6: {[page.epoch for page in pages]}"
            found = [pair for page in pages for pair in zip(page.keys, page.results, strict=True)]
            assert [key for key, _ in found] == [entry.key for entry in expected], f"P-SCAN-1: {found!r:.200}"
            for entry, (_, result) in zip(expected, found, strict=True):
                answer = _LARGE.answer_of(entry)
                if isinstance(result, bytes):
                    assert result == answer, f"P-SCAN-9: {result[:20]!r} for {entry.key!r}"
                elif result != Code.TOO_LARGE or len(answer) < most - 1000:
                    raise Violation(f"P-SCAN-3: {result} for a value of {len(answer)} bytes, with pages of {most}")


@law("P-SCAN-1", "P-SCAN-9")
def test_a_selection_has_its_keys_alone(subject: ServerSubject) -> None:
    """A namespace, the beginning of a text, or whole columns select the keys that have them, and no others."""
    with connect(subject) as session:
        offering = _offering(session, "scans")
        for state in _SMALL_STATES:
            for groups in OWNED if state.name in offering else ():
                entries = _within(state.entries, groups)
                for space in {entry.namespace for entry in entries}:
                    pages = list(_pages(session, target_of(state), groups, namespaces=(space,)))
                    _check(
                        pages, [entry for entry in entries if pack(entry.namespace) == pack(space)], state, LIVE_EPOCH
                    )
                for first in {_columns(entry.key)[0] for entry in entries}:
                    pages = list(_pages(session, target_of(state), groups, prefix=(first,)))
                    chosen = [entry for entry in entries if pack(_columns(entry.key)[0]) == pack(first)]
                    _check(pages, chosen, state, LIVE_EPOCH)
                    if isinstance(first, str | bytes) and len(first) < 300:
                        _check_beginning(session, state, groups, first[: len(first) // 2])


def _check_beginning(session: Session, state: State, groups: tuple[int, int], start: Any) -> None:
    pages = list(_pages(session, target_of(state), groups, prefix=start))
    entries = _within(state.entries, groups)
    chosen = [entry for entry in entries if _columns(entry.key)[0][: len(start)] == start]
    _check(pages, chosen, state, LIVE_EPOCH)


def _columns(key: Key) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


@law("P-SCAN-10", "P-SCAN-2")
def test_a_scan_shows_what_was_asked_for_and_no_more(subject: ServerSubject) -> None:
    """Keys without values, counts without keys, and never more keys than the limit."""
    state = fixture.state("temperature")
    with connect(subject) as session:
        if state.name not in _offering(session, "scans"):
            return
        for groups in OWNED:
            expected = _within(state.entries, groups)
            pages = list(_pages(session, TEMPERATURE, groups, options={"show": "keys"}))
            assert not any(page.results for page in pages), "P-SCAN-2: results of a scan of keys"
            _check(pages, expected, state, LIVE_EPOCH)
            counts = list(_pages(session, TEMPERATURE, groups, options={"show": "count"}))
            assert not any(page.keys or page.results for page in counts), "P-SCAN-2: keys of a count"
            assert sum(page.selected for page in counts) == len(expected), f"P-SCAN-2: {counts}"
            limited = _page(session, TEMPERATURE, groups, options={"limit": 3})
            assert len(limited.keys) <= 3, f"P-SCAN-10: {limited} with the limit 3"
            assert not (len(limited.keys) == 3 and limited.view), f"P-SCAN-10: a view after the limit: {limited}"
            nothing = _page(session, TEMPERATURE, groups, options={"limit": 0})
            assert not (nothing.keys or nothing.view), f"P-SCAN-10: {nothing} with the limit 0"


@law("P-SCAN-1")
def test_there_are_no_keys_after_the_last_group(subject: ServerSubject) -> None:
    """A scan to the largest number of a key group ends as one to `max_parallelism` does; one from there on is empty."""
    state = fixture.state("temperature")
    last = OWNED[-1]
    with connect(subject) as session:
        if state.name not in _offering(session, "scans"):
            return
        pages = list(_pages(session, TEMPERATURE, (last[0], 32_768)))
        _check(pages, _within(state.entries, last), state, LIVE_EPOCH)
        assert not any(page.keys for page in _pages(session, TEMPERATURE, (MAX_PARALLELISM, 32_768)))


@law("P-SCAN-4", "P-SCAN-5", "P-SCAN-9")
def test_a_scan_that_cannot_be_answered_fails_by_code(subject: ServerSubject) -> None:
    """Groups of others, unknown ids and names, groups without an owner, and selections of other types."""
    state = fixture.state("temperature")
    with connect(subject) as session, owner_sessions(subject, state.name) as owners:
        if state.name not in _offering(session, "scans"):
            return
        for owner, direct in owners:
            elsewhere = next(groups for groups in OWNED if groups != (owner.start, owner.stop))
            _expect(_scan(direct, owner.state_id, elsewhere), Code.KEY_GROUP_NOT_OWNED)
            _expect(_scan(direct, bytes(16), (owner.start, owner.stop)), Code.UNKNOWN_STATE_ID)
            _expect(_scan(direct, TEMPERATURE, (owner.start, owner.stop)), Code.UNSUPPORTED)
            _expect(_scan(session, owner.state_id, (owner.start, owner.stop)), Code.UNSUPPORTED)
            first = _page(direct, owner.state_id, (owner.start, MAX_PARALLELISM))
            assert first.next_group <= owner.stop or owner.stop == MAX_PARALLELISM, f"P-SCAN-4: {first} of {owner}"
        _expect(_scan(session, ("no such job", "temperature"), OWNED[0]), Code.UNKNOWN_JOB)
        _expect(_scan(session, (JOB, "no such state"), OWNED[0]), Code.UNKNOWN_STATE)
        lost = _scan(session, TEMPERATURE, GAP, deadline_ms=300)
        _expect(lost, Code.UNKNOWN_KEY_GROUP_LOCATION)
        for fields in ({"prefix": (1,)}, {"prefix": b"JFK"}, {"prefix": ("JFK", 1)}, {"after": (None, 7)}):
            _expect(_scan(session, TEMPERATURE, OWNED[0], **fields), Code.WRONG_KEY_TYPE)
        demand = {**_COMMITTED, "min_epoch": COMMITTED_EPOCH + 1}
        _expect(_scan(session, TEMPERATURE, OWNED[0], options=demand, deadline_ms=300), Code.EPOCH_NOT_REACHED)
        _expect(_scan(session, TEMPERATURE, OWNED[0], options={"no such option": 1}), Code.UNSUPPORTED)
        check_known(session, ask_known(session))


@law("P-SCAN-9")
def test_a_scan_that_is_not_offered_is_unsupported(subject: ServerSubject) -> None:
    """A state whose capabilities have no `scans` answers UNSUPPORTED."""
    with connect(subject) as session:
        offering = _offering(session, "scans")
        for name in {fixture.UNCOMMITTED.name, fixture.STALE.name} - offering:
            _expect(_scan(session, (JOB, name), OWNED[0]), Code.UNSUPPORTED)


@law("P-SCAN-6", "P-SCAN-7")
def test_a_view_belongs_to_its_owner(subject: ServerSubject) -> None:
    """A view of this state id that is not there has expired; one of another id is none; views begin with the id."""
    with connect(subject) as session, owner_sessions(subject, _LARGE.name) as owners:
        if _LARGE.name not in _offering(session, "scans", "committed_reads"):
            return
        ((state_id, direct),) = [(owner.state_id, one) for owner, one in owners if owner.start == _LARGE_GROUPS[0]]
        first = _page(direct, state_id, _LARGE_GROUPS, options=_COMMITTED)
        assert first.view[:16] == state_id, f"P-SCAN-6: {first.view!r} of the state id {state_id!r}"
        _expect(_scan(direct, state_id, _LARGE_GROUPS, view=state_id + bytes(8), options=_COMMITTED), Code.SCAN_EXPIRED)
        again = _page(direct, state_id, _LARGE_GROUPS, view=bytes(24), options=_COMMITTED)
        assert again.keys == first.keys, f"P-SCAN-6: {again.keys}, with the view of another owner"
        for view in (first.view, again.view):
            _page(direct, state_id, _LARGE_GROUPS, view=view, options={**_COMMITTED, "limit": 0})
        _expect(_scan(direct, state_id, _LARGE_GROUPS, view=first.view, options=_COMMITTED), Code.SCAN_EXPIRED)


@law("P-SCAN-7")
def test_views_are_bounded(subject: ServerSubject) -> None:
    """A client that begins scans and never goes on is refused at some number, and the others are served."""
    with connect(subject) as session, owner_sessions(subject, _LARGE.name) as owners:
        if _LARGE.name not in _offering(session, "scans", "committed_reads"):
            return
        ((state_id, direct),) = [(owner.state_id, one) for owner, one in owners if owner.start == _LARGE_GROUPS[0]]
        views = []
        for _ in range(_MOST_VIEWS):
            found = _scan(direct, state_id, _LARGE_GROUPS, options=_COMMITTED)
            if isinstance(found, Failure):
                _expect(found, Code.OVERLOADED)
                break
            views.append(found.view)
        else:
            raise Violation(f"P-SCAN-7: {_MOST_VIEWS} views of one state")
        check_known(session, ask_known(session))
        for view in views:
            _page(direct, state_id, _LARGE_GROUPS, view=view, options={**_COMMITTED, "limit": 0})
        _page(direct, state_id, _LARGE_GROUPS, options={**_COMMITTED, "limit": 1})


def _expect(found: Page | Failure, code: Code) -> None:
    if not isinstance(found, Failure) or found.code != code:
        raise Violation(f"{found!r:.200}, where {code.name} was expected")
