"""Scans: page after page from the place of the one before; what is wrong with a page, and what follows its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.frames import CODES, PAGE, SCAN, message
from qstate_conformance.client.peer import HANG_UP, Peer, Reply, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import client_of, connection, declares, has_left, keeps_working, needs
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.subjects import ClientSubject

SHORT_S = 0.3
#: Less than the shortest wait before another try, more than a request needs to be sent again at once.
NO_WAIT_S = 0.002
MAX_PARALLELISM = 128
VIEW = bytes(range(16)) + b"a view"


def _group(key: str) -> int:
    return group_of(key, MAX_PARALLELISM)


#: In the order of a scan.
KEYS = sorted((f"key {number}" for number in range(8)), key=lambda key: (_group(key), pack(key)))
#: In everything that is wrong: no scan may ever give it.
MARK = "of a wrong page"
Sheet = Callable[[Request], Reply]


def _sheet(first: int, stop: int, **more: Any) -> Sheet:
    """A page of some of `KEYS`, each with itself as its value, as far as the Scan shows them. The last key ends it."""

    def page(request: Request) -> bytes:
        last = KEYS[stop - 1]
        place = (request.groups[1], None) if stop == len(KEYS) else (_group(last), [None, last])
        fields: dict[str, Any] = {"next_group": place[0], "after": place[1], **more}
        show = request.options.get("show", "values")
        if show != "values":
            fields["results"] = []
        if show == "count":
            fields["keys"] = []
        return frames.page(request.id, {key: pack(key) for key in KEYS[first:stop]}, **fields)

    return page


def _ending(entries: dict[str, Any] | None = None, **more: Any) -> Sheet:
    """A page that ends the scan with one wrong value, apart from what is said about it."""
    found = {MARK: pack(MARK)} if entries is None else entries

    def page(request: Request) -> bytes:
        fields = {"next_group": request.groups[1], **more}
        return frames.page(request.id, found, **fields)

    return page


def _answering(peer: Peer, *sheets: Sheet, rest: Sheet | None = None) -> None:
    """Have the peer answer Scans with these in their order, then with `rest` if there is one, or else honestly.

    A Scan that asks for no keys, which tells the server to forget a view, is always answered honestly.
    """
    left = iter(sheets)

    def answer(request: Request) -> Iterable[Reply]:
        if request.type != SCAN or request.options.get("limit") == 0:
            return peer.honest(request)
        sheet = next(left, rest)
        return peer.honest(request) if sheet is None else [sheet(request)]

    peer.answer = answer


def _scans(peer: Peer) -> list[Request]:
    return [scan for scan in peer.of_type(SCAN) if scan.options.get("limit") != 0]


def _keys(outcome: Outcome) -> list[Any]:
    return [entry.get("key") for entry in outcome.body.get("entries", ())]


@law("P-SCAN-2", "P-SCAN-6", "P-GET-13")
def test_each_page_is_asked_for_where_the_one_before_ended(subject: ClientSubject) -> None:
    """Each request has the place and the view of the page before, and the selection and options of the first one."""
    needs(subject, "scan")
    sheets = [_sheet(0, 3, view=VIEW), _sheet(3, 4, view=VIEW + b"!"), _sheet(4, 6), _sheet(6, len(KEYS))]
    selection: dict[str, Any] = {"prefix": "key", "namespace": None, "isolation": "committed"}
    with Peer() as peer:
        _answering(peer, *sheets)
        with client_of(subject, peer) as client:
            outcome = client.scan(**selection)
        assert peer.faults == []
    assert not outcome.failed, outcome
    scans = _scans(peer)
    places = [(scan.groups[0], scan.after) for scan in scans]
    assert places == [(0, None), *((_group(KEYS[at]), (None, KEYS[at])) for at in (2, 3, 5))]
    assert [scan.view for scan in scans] == [b"", VIEW, VIEW + b"!", b""]
    for scan in scans:
        assert (scan.elements[4], scan.elements[5], scan.groups[1]) == ((None,), "key", scans[0].groups[1])
        assert scan.options.get("show", "values") == "values"
        assert scan.options.get("isolation") == "committed", f"{scan} of a committed scan"
    assert _keys(outcome) == KEYS
    assert [entry.get("value") for entry in outcome.body["entries"]] == KEYS
    assert outcome.body.get("count") == len(KEYS), outcome


@law("P-SCAN-2")
def test_a_page_without_keys_is_no_end(subject: ClientSubject) -> None:
    """A scan goes on after a page without keys, and ends only with its last key group."""
    needs(subject, "scan")
    for show in ("values", "keys", "count"):
        nothing, more = _ending({}, next_group=0, after=[None, "a"]), _ending({}, next_group=_group(KEYS[0]))
        with Peer() as peer:
            _answering(peer, nothing, more, _sheet(0, 4), _sheet(4, len(KEYS)))
            with client_of(subject, peer) as client:
                outcome = client.scan(show=show)
            assert peer.faults == []
        assert not outcome.failed, outcome
        assert outcome.body.get("count") == len(KEYS), f"{show}: {outcome}"
        assert _keys(outcome) == ([] if show == "count" else KEYS)


#: What a caller says, and the fields namespaces, prefix and key groups, and the option that follow from it.
SELECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "text": ({"prefix": "J"}, {"prefix": "J"}),
    "bytes": ({"prefix": b"\x00J"}, {"prefix": b"\x00J"}),
    "the first column": ({"prefix": ["EWR"]}, {"prefix": ("EWR",)}),
    "two columns": ({"prefix": ["EWR", 1545]}, {"prefix": ("EWR", 1545)}),
    "the void namespace": ({"namespace": None}, {"namespaces": (None,)}),
    "a window": ({"namespace": (0, 1 << 40)}, {"namespaces": ((0, 1 << 40),)}),
    "key groups": ({"key_groups": [3, 5]}, {"groups": (3, 5)}),
    "a limit": ({"limit": 7}, {"limit": 7}),
    "keys": ({"show": "keys"}, {"show": "keys"}),
    "a count": ({"show": "count"}, {"show": "count"}),
    "committed": ({"isolation": "committed"}, {"isolation": "committed"}),
}


@law("P-SCAN-9", "P-SCAN-10", "P-MSG-6", "P-MSG-8")
def test_a_scan_says_what_is_selected(subject: ClientSubject) -> None:
    """A Scan carries exactly the caller's selection: prefix, namespace, key groups, limit, and what to show."""
    needs(subject, "scan")
    for name, (said, expected) in SELECTIONS.items():
        columns = ["string", "bigint"] if "columns" in name else ["binary"] if name == "bytes" else ["string"]
        state = state_map(key_types=columns, namespace_types=["bigint", "bigint"], capabilities=["scans"])
        with Peer(states=[state]) as peer, client_of(subject, peer) as client:
            outcome = client.scan(**said)
            assert peer.faults == []
            assert not outcome.failed, f"{name}: {outcome}"
            (scan,) = _scans(peer)
        assert scan.elements[4:6] == (expected.get("namespaces", ()), expected.get("prefix")), f"{name} became {scan}"
        start, stop = expected.get("groups", (0, scan.groups[1]))
        assert scan.groups == (start, stop) and stop >= min(5, MAX_PARALLELISM), f"{name} became {scan}"
        usual = {"show": "values", "isolation": "live"}
        found = {option: value for option, value in scan.options.items() if value != usual.get(option)}
        found.pop("max_bytes", None)
        assert found == {option: expected[option] for option in ("limit", "show", "isolation") if option in expected}


@law("P-SCAN-10")
def test_a_limit_counts_the_keys_of_all_pages(subject: ClientSubject) -> None:
    """With a limit, each request asks for the keys that are left, and the scan ends when there are none."""
    needs(subject, "scan")
    with Peer() as peer:
        _answering(peer, _sheet(0, 3, view=VIEW), _sheet(3, 5), _sheet(5, len(KEYS)))
        with client_of(subject, peer) as client:
            outcome = client.scan(limit=5)
        assert peer.faults == []
    assert _keys(outcome) == KEYS[:5], outcome
    assert [scan.options.get("limit") for scan in _scans(peer)] == [5, 2]


@law("P-SCAN-8", "P-SCAN-3")
def test_entries_keep_the_epochs_and_failures_of_their_pages(subject: ClientSubject) -> None:
    """Pages of several epochs are no failure and no snapshot: each entry has its page's epoch, or its own code."""
    needs(subject, "scan")

    def failing(request: Request) -> bytes:
        entries: dict[str, Any] = {key: pack(key) for key in KEYS[2:5]}
        entries[KEYS[3]] = CODES["TOO_LARGE"]
        return frames.page(request.id, entries, _group(KEYS[4]), [None, KEYS[4]], epoch=9)

    with Peer() as peer:
        _answering(peer, _sheet(0, 2, epoch=7), failing, _sheet(5, len(KEYS), epoch=4))
        with client_of(subject, peer) as client:
            outcome = client.scan(isolation="committed")
    assert not outcome.failed, outcome
    entries = outcome.body["entries"]
    assert [entry.get("value") for entry in entries] == [None if key == KEYS[3] else key for key in KEYS]
    assert entries[3].get("error", {}).get("code") == "TOO_LARGE", entries[3]
    for at, entry in enumerate(entries):
        epoch = 7 if at < 2 else 9 if at < 5 else 4
        assert at == 3 or entry.get("epoch") in (epoch, None), f"{entry} from a page of epoch {epoch}"


@law("P-DESC-5")
def test_values_of_another_description_are_asked_for_again(subject: ClientSubject) -> None:
    """When a page has another fingerprint than the state, the client looks the state up and asks for the page again."""
    needs(subject, "scan", "retry")
    later = state_map(kind="list", fingerprint="another")
    with Peer() as peer:

        def replaced(request: Request) -> bytes:
            peer.states = {"state": later}
            return frames.page(request.id, {KEYS[2]: pack([1])}, request.groups[1], fingerprint="another")

        _answering(peer, _sheet(0, 2), replaced, replaced)
        with client_of(subject, peer) as client:
            outcome = client.scan()
    assert not outcome.failed, outcome
    assert [entry.get("value") for entry in outcome.body["entries"]] == [*KEYS[:2], [1]], outcome
    again = _scans(peer)[1:]
    assert len(again) > 1 and len({(scan.groups, scan.after) for scan in again}) == 1, f"not asked for again: {again}"


def _where_it_began(request: Request) -> bytes:
    return frames.page(request.id, {MARK: pack(MARK)}, request.groups[0], request.after)


#: What the caller says, and the page that is no answer to that.
WRONG_PAGES: dict[str, tuple[dict[str, Any], Sheet]] = {
    "goes on where it began": ({}, _where_it_began),
    "goes on at an earlier key group": ({}, _ending(next_group=_group(KEYS[1]) - 1)),
    "goes on at a later key group": ({"key_groups": [0, 120]}, _ending(next_group=121)),
    "goes on after the last key group": ({}, _ending(after=[None, MARK])),
    "has no values": ({}, _ending(results=[])),
    "has values": ({"show": "keys"}, _ending()),
    "has keys": ({"show": "count"}, _ending(results=[])),
    "has more keys than the limit": ({"limit": 3}, _ending({MARK: pack(MARK), KEYS[2]: pack(MARK)})),
    "counts more keys than the limit": ({"limit": 3, "show": "keys"}, _ending({}, selected=2)),
}
#: Pages that break their table.
BROKEN_PAGES: dict[str, Sheet] = {
    "nil for a value": _ending({MARK: None}),
    "one value too many": _ending(results=[pack(MARK)] * 2),
    "one namespace too many": _ending(namespaces=[None, None]),
    "a key that is nil": _ending(keys=[None]),
    "a key that is an array of one column": _ending(keys=[[MARK]]),
    "a place of one element": _ending(next_group=_group(KEYS[1]) + 1, after=[MARK]),
    "a place without a key": _ending(next_group=_group(KEYS[1]) + 1, after=[None, None]),
    "a view that is text": _ending(view="a view"),
    "a view that is too long": _ending(view=bytes(65)),
    "an epoch below -1": _ending(epoch=-2),
    "a fingerprint that is empty": _ending(fingerprint=""),
    "a number of keys that is negative": _ending(selected=-1),
    "a key group that is text": _ending(next_group="3"),
    "too few elements": lambda request: message(PAGE, request.id, 1, frames.FINGERPRINT, b"", 128, None, 0, [], []),
    "another type": lambda request: frames.values(request.id, [pack(MARK)]),
}


@law("P-SCAN-11", "P-BROKEN-2")
def test_a_page_that_is_no_answer_ends_the_connection(subject: ClientSubject) -> None:
    """A page that goes on elsewhere, or has what was not asked for, is dropped and its connection closed."""
    needs(subject, "scan")
    _are_dropped(subject, WRONG_PAGES)


@law("P-SCAN-11", "P-GET-11")
def test_a_page_of_an_earlier_epoch_than_demanded_ends_the_connection(subject: ClientSubject) -> None:
    """A page with keys of an epoch before min_epoch is dropped, and its connection closed."""
    needs(subject, "scan", "demands")
    _are_dropped(subject, {"is of an earlier epoch": ({"min_epoch": 7}, _ending(epoch=6))})


@law("P-SCAN-11", "P-BROKEN-2", "P-MSG-5", "P-MSG-6")
def test_a_page_that_breaks_its_table_ends_the_connection(subject: ClientSubject) -> None:
    """A page with a field that its table does not allow is dropped, and its connection closed."""
    needs(subject, "scan")
    _are_dropped(subject, {f"has {name}": ({}, broken) for name, broken in BROKEN_PAGES.items()})


def _are_dropped(subject: ClientSubject, wrong: dict[str, tuple[dict[str, Any], Sheet]]) -> None:
    """Assert that clients take nothing of a second page that is wrong, and close the connection that it came on."""
    with ExitStack() as open_until_the_end:
        asked = []
        for name, (said, sheet) in wrong.items():
            peer = open_until_the_end.enter_context(Peer())
            _answering(peer, _sheet(0, 2, epoch=7, view=VIEW), sheet)
            client = open_until_the_end.enter_context(client_of(subject, peer))
            asked.append((name, peer, client, client.start_scan(**said)))
            if not declares(subject, "async"):
                asked[-1][-1].outcome()
        for name, peer, client, pending in asked:
            outcome = pending.outcome()
            assert len(_scans(peer)) >= 2, f"{outcome} after {_scans(peer)}"
            assert has_left(peer, connection(peer, _scans(peer)[1].connection)), f"a page that {name} is taken"
            # The client may have asked for the page again (P-SCAN-12): then there were no more keys.
            assert outcome.failed or outcome.body.get("count") == 2, f"a page that {name} became {outcome}"
            assert set(_keys(outcome)) <= set(KEYS[:2]), f"a page that {name} became {outcome}"
            keeps_working(subject, peer, client)


def _lost(request: Request) -> Reply:
    return HANG_UP


def _unavailable(request: Request) -> Reply:
    return frames.failure(request.id, CODES["UNAVAILABLE"])


@law("P-SCAN-12")
def test_a_page_is_asked_for_again_at_most_twice_and_not_at_once(subject: ClientSubject) -> None:
    """A page that is always UNAVAILABLE is asked for three times at most, with waits between, and then fails."""
    needs(subject, "scan")
    for unavailable in (_lost, _unavailable):
        with Peer() as peer:
            _answering(peer, _sheet(0, 2, view=VIEW), rest=unavailable)
            with client_of(subject, peer) as client:
                outcome = client.scan()
                assert not client.describe().failed
        assert outcome.code == "UNAVAILABLE", outcome
        assert set(_keys(outcome)) <= set(KEYS[:2]), outcome
        tries = _scans(peer)[1:]
        assert len(tries) <= 3, f"a page was asked for {len(tries)} times"
        assert all(scan.elements[3:] == tries[0].elements[3:] for scan in tries), f"the tries differ: {tries}"
        waits = [later.at - earlier.at for earlier, later in pairwise(tries)]
        assert all(wait > NO_WAIT_S for wait in waits), f"asked again after {waits} seconds"


@law("P-SCAN-12", "P-SCAN-2")
def test_a_scan_that_survives_a_loss_has_each_key_once(subject: ClientSubject) -> None:
    """When a page is lost, the scan fails, or has each key once: none of the lost page, none twice."""
    needs(subject, "scan")
    with Peer() as peer:
        _answering(peer, _sheet(0, 3, view=VIEW), _lost, _sheet(3, 5), _lost, _lost, _sheet(5, len(KEYS)))
        with client_of(subject, peer) as client:
            outcome = client.scan()
            keeps_working(subject, peer, client)
        assert peer.faults == []
    if outcome.failed:
        assert outcome.code == "UNAVAILABLE", outcome
        assert _keys(outcome) in ([], KEYS[:3], KEYS[:5]), outcome
    else:
        assert _keys(outcome) == KEYS, outcome


@law("P-SCAN-7", "P-RETRY-1")
def test_a_view_that_has_expired_is_not_sent_again(subject: ClientSubject) -> None:
    """After SCAN_EXPIRED a scan fails with that code, or goes on from the same place without the view."""
    needs(subject, "scan")
    with Peer() as peer:
        _answering(
            peer,
            _sheet(0, 3, view=VIEW),
            lambda request: frames.failure(request.id, CODES["SCAN_EXPIRED"]),
            _sheet(3, len(KEYS)),
        )
        with client_of(subject, peer) as client:
            outcome = client.scan(isolation="committed")
    assert outcome.code == "SCAN_EXPIRED" or _keys(outcome) == KEYS, outcome
    assert [scan.view for scan in _scans(peer)] in ([b"", VIEW], [b"", VIEW, b""])


@law("P-DEADLINE-4", "P-RETRY-1")
def test_a_page_that_does_not_come_fails_at_its_deadline(subject: ClientSubject) -> None:
    """A scan whose page does not come fails with DEADLINE_EXCEEDED, and is not sent again."""
    needs(subject, "scan")
    with Peer() as peer:
        peer.answer = lambda request: [] if request.type == SCAN else peer.honest(request)
        with client_of(subject, peer) as client:
            outcome = client.scan(timeout_s=SHORT_S)
            assert outcome.code == "DEADLINE_EXCEEDED", outcome
            (scan,) = _scans(peer)
            assert scan.deadline_ms <= SHORT_S * 1000, f"{scan} with {SHORT_S} s to go"
            keeps_working(subject, peer, client)
