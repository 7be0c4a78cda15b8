"""Parts of values and pages of descriptions: what a client asks for, what it puts together, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.frames import DESCRIBE, DESCRIPTION, GET_PART, message
from qstate_conformance.client.peer import Peer, Reply, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import client_of, connection, declares, has_left, keeps_working, needs
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.subjects import ClientSubject

#: In everything that is wrong: no part may ever give it.
MARK = "of a wrong part"
TEXT = "a value that comes in pieces " * 3
WHOLE = pack(TEXT)
PIECE = 20
#: More than any client tries to read a value that never stays the same.
MOST_REQUESTS = 1000

Sheet = Callable[[Request], Reply]


def _peer(kind: str, *sheets: Sheet, rest: Sheet | None = None) -> Peer:
    """A peer whose state is of this kind. It answers GetParts with these in their order, then with `rest`."""
    peer = Peer(states=[state_map(kind=kind)])
    left = iter(sheets)

    def answer(request: Request) -> list[Reply]:
        if request.type != GET_PART:
            return list(peer.honest(request))
        sheet = next(left, rest)
        return [] if sheet is None else [sheet(request)]

    peer.answer = answer
    return peer


def _of(result: bytes | None, **more: Any) -> Sheet:
    return lambda request: frames.part(request.id, result, **more)


def _piece(whole: bytes = WHOLE, version: bytes = b"one", length: int = PIECE, **more: Any) -> Sheet:
    """The piece of these bytes that a request asks for, but no more than `length` bytes."""

    def piece(request: Request) -> bytes:
        start = request.elements[10]
        fields = {"total": len(whole), "version": version, **more}
        return frames.part(request.id, whole[start : start + min(length, request.elements[11])], **fields)

    return piece


def _asked(peer: Peer) -> list[Request]:
    return peer.of_type(GET_PART)


@law("P-PART-1", "P-GET-13")
def test_a_part_is_asked_for_and_shown(subject: ClientSubject) -> None:
    """Entries, pages, slices and sizes are asked for with what the caller says, and shown as what the answer says."""
    needs(subject, "parts")
    entries = pack({"a": 1, "b": None})
    elements = pack([1, "x"])
    cases: dict[str, tuple[str, dict[str, Any], Sheet, tuple[Any, ...], Any]] = {
        "entries": ("map", {"map_keys": ["a", "b"]}, _of(entries), (("a", "b"), None, 0, 0), {"a": 1, "b": None}),
        "page": ("map", {"after": "a", "limit": 7}, _of(entries, after="b"), ((), "a", 0, 7), {"a": 1, "b": None}),
        "slice": ("list", {"start": 3, "stop": 5}, _of(elements), ((), None, 3, 2), [1, "x"]),
        "size": ("list", {}, _of(None, total=9), ((), None, 0, 0), None),
    }
    for part, (kind, said, sheet, fields, value) in cases.items():
        with _peer(kind, sheet) as peer:
            with client_of(subject, peer) as client:
                outcome = client.get_part("k", part, isolation="committed", namespace="w", **said)
            assert peer.faults == []
        (request,) = _asked(peer)
        assert (request.namespace, request.elements[6], request.elements[7]) == ("w", "k", part), request
        assert request.options.get("isolation") == "committed", request
        used = {"entries": (0,), "page": (1, 3), "slice": (2, 3), "size": ()}[part]
        sent = request.elements[8:12]
        assert all(sent[index] == fields[index] for index in used), f"{request} for {said}"
        assert not outcome.failed, outcome
        if part == "size":
            assert outcome.body.get("size") == 9, outcome
            continue
        told = outcome.value if kind == "list" else dict(map(tuple, outcome.value["$map"]))
        assert told == value, f"{outcome} of {value}"
        assert part != "page" or outcome.body.get("after") == "b", outcome


@law("P-PART-1")
def test_a_part_with_nothing_in_it_is_nothing(subject: ClientSubject) -> None:
    """A result of nil is no value; the last page and one without entries are told apart."""
    needs(subject, "parts")
    for kind, part, said in (
        ("map", "entries", {"map_keys": ["a"]}),
        ("map", "page", {"limit": 1}),
        ("list", "slice", {"start": 0, "stop": 1}),
        ("value", "large", {}),
    ):
        with _peer(kind, _of(None)) as peer, client_of(subject, peer) as client:
            outcome = client.get_part("k", part, **said)
        assert not outcome.failed and not outcome.found, f"{part}: {outcome}"
        assert outcome.body.get("after") is None, outcome
    with _peer("map", _of(None, after="b")) as peer, client_of(subject, peer) as client:
        outcome = client.get_part("k", "page", limit=1)
    assert not outcome.failed and outcome.body.get("after") == "b", outcome


@law("P-PART-4")
def test_pieces_of_one_version_are_put_together(subject: ClientSubject) -> None:
    """A value is asked for from byte to byte, and is what its pieces make."""
    needs(subject, "parts")
    with _peer("value", rest=_piece()) as peer:
        with client_of(subject, peer) as client:
            outcome = client.get_part("k", "large")
        assert peer.faults == []
    assert not outcome.failed and outcome.value == TEXT, outcome
    starts = [request.elements[10] for request in _asked(peer)]
    assert starts == list(range(0, len(WHOLE), PIECE)), starts


#: How the second piece shows that the value is another one.
OTHERS: dict[str, dict[str, Any]] = {
    "another version": {"version": b"two"},
    "another number of bytes": {"total": len(WHOLE) + 1},
}


@law("P-PART-4")
def test_a_value_that_has_changed_is_read_again(subject: ClientSubject) -> None:
    """When a piece is of another version, or of more bytes, the client begins again, and gives the later value."""
    needs(subject, "parts")
    later = pack(TEXT.upper())
    for name, other in OTHERS.items():
        version = other.get("version", b"one")
        with _peer("value", _piece(), _piece(**other), rest=_piece(later, version + b"!")) as peer:
            with client_of(subject, peer) as client:
                outcome = client.get_part("k", "large")
            assert peer.faults == []
        assert not outcome.failed and outcome.value == TEXT.upper(), f"{name}: {outcome}"


@law("P-PART-4", "P-RETRY-1")
def test_a_value_that_never_stays_the_same_is_given_up(subject: ClientSubject) -> None:
    """When the value changes again and again, the client fails after some tries, and gives nothing of it."""
    needs(subject, "parts")
    versions = iter(range(1, MOST_REQUESTS))
    changing = _peer("value", rest=lambda request: _piece(version=b"%d" % next(versions))(request))
    with changing as peer, client_of(subject, peer) as client:
        outcome = client.get_part("k", "large")
    assert outcome.failed, f"pieces of different versions became {outcome}"
    assert len(_asked(peer)) < MOST_REQUESTS


#: What the caller says, the kind of the state, and the part that is no answer to that.
WRONG_PARTS: dict[str, tuple[str, str, dict[str, Any], Sheet]] = {
    "is of an earlier epoch": ("value", "large", {"min_epoch": 7}, _piece(pack(MARK), length=99, epoch=6)),
    "goes on where it began": ("map", "page", {"after": "b", "limit": 1}, _of(pack({MARK: 1}), after="b")),
    "goes on before it began": ("map", "page", {"after": "b", "limit": 1}, _of(pack({MARK: 1}), after="a")),
    "goes on without being a page": ("map", "entries", {"map_keys": ["a"]}, _of(pack({MARK: 1}), after="a")),
    "has more bytes than the value": ("value", "large", {}, _of(pack(MARK), total=3, version=b"v")),
    "has no bytes of a value that has some": ("value", "large", {}, _of(b"", total=3, version=b"v")),
    "has no fingerprint": ("value", "large", {}, _piece(pack(MARK), length=99, fingerprint="")),
    "has a version that is too long": ("value", "large", {}, _piece(pack(MARK), bytes(65), 99)),
    "has text for a result": ("map", "entries", {"map_keys": ["a"]}, _of(MARK)),  # type: ignore[arg-type]
    "has another type": ("map", "entries", {"map_keys": ["a"]}, lambda request: frames.values(request.id, [b""])),
}


@law("P-PART-8", "P-BROKEN-2")
def test_a_part_that_is_no_answer_ends_the_connection(subject: ClientSubject) -> None:
    """A part that goes on elsewhere, is of an earlier epoch, or has other bytes than it says is dropped."""
    needs(subject, "parts")
    with ExitStack() as open_until_the_end:
        asked = []
        for name, (kind, part, said, sheet) in WRONG_PARTS.items():
            if "min_epoch" in said and not declares(subject, "demands"):
                continue
            peer = open_until_the_end.enter_context(_peer(kind, sheet))
            client = open_until_the_end.enter_context(client_of(subject, peer))
            asked.append((name, peer, client, client.start_part("k", part, **said)))
            if not declares(subject, "async"):
                asked[-1][-1].outcome()
        for name, peer, client, pending in asked:
            outcome = pending.outcome()
            assert has_left(peer, connection(peer, _asked(peer)[0].connection)), f"a part that {name} is taken"
            assert outcome.failed, f"a part that {name} became {outcome}"
            keeps_working(subject, peer, client) if kind_of(peer) == "value" else None


def kind_of(peer: Peer) -> str:
    """The kind of the peer's only state."""
    (state,) = peer.states.values()
    return str(state["kind"])


# --- pages of descriptions ---------------------------------------------------------------------------------------


def _listing(request_id: int, entries: list[Any], more: bool) -> bytes:
    return message(DESCRIPTION, request_id, entries, *(({"?more": True},) if more else ()))


@contextmanager
def _described(subject: ClientSubject, pages: list[tuple[list[Any], bool]]) -> Iterator[tuple[Outcome, Peer]]:
    """What a client lists when Describes are answered with these pages, and the peer; both ends are open meanwhile."""
    left = iter(pages)
    with Peer() as peer:

        def answer(request: Request) -> list[Reply]:
            page = next(left, None) if request.type == DESCRIBE else None
            return list(peer.honest(request)) if page is None else [_listing(request.id, *page)]

        with client_of(subject, peer) as client:
            client.get("k")  # some clients ask when they are opened
            peer.answer = answer
            yield client.describe("job"), peer


@law("P-DESC-7")
def test_pages_of_descriptions_are_followed(subject: ClientSubject) -> None:
    """A client that asks for pages has the entries of all of them; one without `?more` is the last."""
    states = [state_map(name=name) for name in ("a", "b", "c", "é")]
    for pages in ([states], [states[:1], states[1:3], states[3:]], [states[:2], states[2:], []]):
        answers = [(page, index < len(pages) - 1) for index, page in enumerate(pages)]
        with _described(subject, answers) as (outcome, peer):
            asked = peer.of_type(DESCRIBE)
            if len(asked) == 1 and len(asked[0].elements) == 4:
                continue  # it asks for no pages, and gets none from a server
            assert not outcome.failed, outcome
            assert [state["name"] for state in outcome.body["states"]] == ["a", "b", "c", "é"], outcome
            places = [dict(request.elements[4].entries)["?after"] for request in asked]
            assert places == ["", *(page[-1]["name"] for page in pages[:-1])], places


@law("P-DESC-7", "P-BROKEN-2")
def test_a_page_of_descriptions_that_leads_nowhere_ends_the_connection(subject: ClientSubject) -> None:
    """A page with `?more` that has no entries, or none after the place asked for, ends its connection."""
    first = state_map(name="b")
    wrong: list[list[tuple[list[Any], bool]]]
    wrong = [
        [([], True)],
        [([first], True), ([first], True)],
        [([first], True), ([state_map(name="a")], True)],
    ]
    for pages in wrong:
        with _described(subject, pages) as (outcome, peer):
            asked = peer.of_type(DESCRIBE)
            if len(asked[0].elements) == 4:
                continue
            assert outcome.failed, f"{pages} became {outcome}"
            assert has_left(peer, connection(peer, asked[-1].connection)), f"{pages} are taken"
