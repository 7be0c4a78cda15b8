"""Hostile servers: a breach of the protocol ends its connection, is reported as a failure, and harms nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S, Outcome
from qstate_conformance.client.frames import FAILURE, FINGERPRINT, VALUES, frame, message
from qstate_conformance.client.peer import CLOSE, HANG_UP, Peer, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import answering_gets, client_of, connection, has_left, keeps_working
from qstate_conformance.laws import law
from qstate_conformance.packing import Ext, Pairs, pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

#: The value in everything that is broken: no request may ever give it.
MARK = pack("of a broken stream")
#: A deadline later than a law looks, so that giving up does not count as refusing.
LATER_S = 20.0
Spoil = Callable[[int], bytes]

WRONG_REQUEST: dict[str, Spoil] = {
    "an id that is not in flight": lambda number: frames.values(number + 1000, [MARK]),
    "the largest id": lambda number: frames.values((1 << 32) - 1, [MARK]),
    "a Failure of an id that is not in flight": lambda number: frames.failure(number + 1000, 19),
    "Pong for a Get": frames.pong,
    "Description for a Get": lambda number: frames.description(number, [{"job": "job"}]),
    "Location for a Get": lambda number: frames.location(number, state_map(), []),
    "no results": lambda number: message(VALUES, number, [], [], FINGERPRINT),
    "one result too many": lambda number: frames.values(number, [MARK, MARK]),
    "one epoch too many": lambda number: message(VALUES, number, [1, 1], [MARK], FINGERPRINT),
    "no epochs": lambda number: message(VALUES, number, [], [MARK], FINGERPRINT),
}
WRONG_STREAM: dict[str, Spoil] = {
    "an id that is no integer": lambda number: message(VALUES, str(number), [1], [MARK], FINGERPRINT),
    "an id of more than 32 bits": lambda number: message(VALUES, 1 << 32, [1], [MARK], FINGERPRINT),
    "a negative id": lambda number: message(VALUES, -1, [1], [MARK], FINGERPRINT),
    "an id that is a fraction": lambda number: message(VALUES, number + 0.5, [1], [MARK], FINGERPRINT),
    "the id 0": lambda number: message(VALUES, 0, [1], [MARK], FINGERPRINT),
    "a type that is no integer": lambda number: message("3", number, [1], [MARK]),
    "an unknown type": lambda number: message(99, number, [1], [MARK]),
    "a request": lambda number: message(8, number),
    "a Hello": lambda number: message(0, 0, [1], None, ""),
    "a second Welcome": lambda number: frames.welcome(),
    "a Hello with the id of a request": lambda number: message(0, number, [1], None, ""),
    "a Welcome with the id of a request": lambda number: message(1, number, 1, "", [], 65536, 10),
    "Values of the type of a Hello": lambda number: message(0, number, [1], [MARK]),
    "Values of the type of a Welcome": lambda number: message(1, number, [1], [MARK]),
    "no MessagePack": lambda number: frame(b"\xc1"),
    "an empty payload": lambda number: frame(b""),
    "a payload that is cut": lambda number: frame(frames.values(number, [MARK])[4:-1]),
    "bytes after the message": lambda number: frame(frames.values(number, [MARK])[4:] + b"\xc0"),
    "a map": lambda number: frame(pack({"type": 3, "id": number})),
    "an array without an id": lambda number: message(VALUES),
    "a length over the limit": lambda number: (frames.MAX_FRAME + 1).to_bytes(4, "big"),
    "the largest length": lambda number: b"\xff\xff\xff\xff",
}
WRONG_VALUES: dict[str, Spoil] = {
    "too few elements": lambda number: message(VALUES, number, [1], [MARK]),
    "too many elements": lambda number: message(VALUES, number, [1], [MARK], FINGERPRINT, {}, {}),
    "attributes that are nil": lambda number: message(VALUES, number, [1], [MARK], FINGERPRINT, None),
    "an attribute that must not be ignored": lambda number: message(VALUES, number, [1], [MARK], FINGERPRINT, {"a": 1}),
    "an attribute that is no scalar": lambda number: message(VALUES, number, [1], [MARK], FINGERPRINT, {"?a": []}),
    "a fingerprint that is nil": lambda number: message(VALUES, number, [1], [MARK], None),
    "a fingerprint that is binary": lambda number: message(VALUES, number, [1], [MARK], FINGERPRINT.encode()),
    "a fingerprint that is too long": lambda number: message(VALUES, number, [1], [MARK], "x" * 256),
    "a value without a fingerprint": lambda number: message(VALUES, number, [1], [MARK], ""),
    "a result that is text": lambda number: message(VALUES, number, [1], ["of a broken stream"], FINGERPRINT),
    "a result that is a fraction": lambda number: message(VALUES, number, [1], [0.5], FINGERPRINT),
    "a result that is a boolean": lambda number: message(VALUES, number, [1], [True], FINGERPRINT),
    "a result that is an array": lambda number: message(VALUES, number, [1], [[MARK]], FINGERPRINT),
    "a result that is an extension type": lambda number: message(VALUES, number, [1], [Ext(5, MARK)], FINGERPRINT),
    "results that are no array": lambda number: message(VALUES, number, [1], MARK, FINGERPRINT),
    "a code of 0": lambda number: message(VALUES, number, [-1], [0], FINGERPRINT),
    "a code of more than 16 bits": lambda number: message(VALUES, number, [-1], [65536], FINGERPRINT),
    "a negative code": lambda number: message(VALUES, number, [-1], [-5], FINGERPRINT),
    "a code with an epoch": lambda number: message(VALUES, number, [3], [19], FINGERPRINT),
    "an epoch below -1": lambda number: message(VALUES, number, [-2], [MARK], FINGERPRINT),
    "an epoch that is text": lambda number: message(VALUES, number, ["1"], [MARK], FINGERPRINT),
    "an epoch that is a fraction": lambda number: message(VALUES, number, [1.5], [MARK], FINGERPRINT),
    "an epoch that is a boolean": lambda number: message(VALUES, number, [True], [MARK], FINGERPRINT),
    "an epoch that is nil": lambda number: message(VALUES, number, [None], [MARK], FINGERPRINT),
    "epochs that are no array": lambda number: message(VALUES, number, 1, [MARK], FINGERPRINT),
}
WRONG_FAILURES: dict[str, Spoil] = {
    "a Failure without details": lambda number: message(FAILURE, number, 10),
    "a Failure with more elements": lambda number: message(FAILURE, number, 10, {}, {}, {}),
    "a Failure with an attribute": lambda number: message(FAILURE, number, 10, {}, {"a": 1}),
    "a Failure of code 0": lambda number: frames.failure(number, 0),
    "a Failure of code 65536": lambda number: frames.failure(number, 65536),
    "a code that is text": lambda number: message(FAILURE, number, "OVERLOADED", {}),
    "a code that is a boolean": lambda number: message(FAILURE, number, True, {}),
    "details that are nil": lambda number: message(FAILURE, number, 10, None),
    "details that are an array": lambda number: message(FAILURE, number, 10, []),
    "a detail without a name": lambda number: frames.failure(number, 10, {"": 1}),
    "a detail with a name too long": lambda number: frames.failure(number, 10, {"x" * 256: 1}),
    "a detail with a name that is binary": lambda number: message(FAILURE, number, 10, Pairs(((b"a", 1),))),
    "a detail with a name that is a number": lambda number: message(FAILURE, number, 10, Pairs(((5, 1),))),
    "two details of one name": lambda number: message(FAILURE, number, 10, Pairs((("a", 1), ("a", 2)))),
    "more details than 64": lambda number: frames.failure(number, 10, {f"d{index}": 1 for index in range(65)}),
    "a detail that is an array": lambda number: frames.failure(number, 10, {"a": [1]}),
    "a detail that is binary": lambda number: frames.failure(number, 10, {"a": b"x"}),
    "a detail that is not finite": lambda number: frames.failure(number, 10, {"a": float("inf")}),
    "a detail that is no number": lambda number: frames.failure(number, 10, {"a": float("nan")}),
    "a detail of more than 63 bits": lambda number: frames.failure(number, 10, {"a": 1 << 63}),
    "a detail that is no UTF-8": lambda number: message(FAILURE, number, 10, {"a": "\ud800"}),
}


def _without(name: str) -> dict[str, Any]:
    state = state_map()
    del state[name]
    return state


WRONG_ENTRIES: dict[str, Any] = {
    "entries that are no array": {"job": "job"},
    "an entry that is no map": ["job"],
    "an entry that is nil": [None],
    **{f"a state without {name}": [_without(name)] for name in state_map() if name != "kind"},
    "a fingerprint that is empty": [state_map(fingerprint="")],
    "a serializer version of 0": [state_map(serializer_version=0)],
    "a serializer version that is text": [state_map(serializer_version="1")],
    "namespace types that are text": [state_map(namespace_types="string")],
    "a kind that is a number": [state_map(kind=1)],
    "a name that is empty": [state_map(name="")],
    "a name that is binary": [state_map(name=b"state")],
    "key types that are text": [state_map(key_types="string")],
    "a key type that is a number": [state_map(key_types=[1])],
    "more key types than 64": [state_map(key_types=["string"] * 65)],
    "a value type that is nil": [state_map(value_type=None)],
    "capabilities that are nil": [state_map(capabilities=None)],
    "an unknown name whose value is a map": [state_map(more={"a": 1})],
    "an unknown name whose value is an array of arrays": [state_map(more=[[1]])],
    "two values of one name": [Pairs((*state_map().items(), ("name", "twice")))],
    "more names than 64": [{**state_map(), **{f"n{index}": 1 for index in range(57)}}],
    "an extension type": [state_map(more=Ext(5, b"x"))],
}


def _ends(subject: ClientSubject, name: str, spoil: Spoil) -> None:
    """The first Get is answered with this: alone, and followed by an answer that would be right.

    A client that passed over the one would end the connection on the other, or give its value away.
    """
    _ends_on(subject, name, spoil)
    right = "which a sound answer follows"
    _ends_on(subject, f"{name}, {right}", lambda number: spoil(number) + frames.values(number, [MARK]))


def _ends_on(subject: ClientSubject, name: str, spoil: Spoil) -> None:
    spoilt: list[Request] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if spoilt and request.connection != spoilt[0].connection:
                return peer.honest(request)
            spoilt.append(request)
            return [spoil(request.id)]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            waiting = client.start_get("key", timeout_s=LATER_S)
            _is_left(peer, spoilt, name)
            outcome = waiting.outcome()
            assert outcome.failed or outcome.value == "key", f"after {name} the request gives {outcome}"
            keeps_working(subject, peer, client)


def _is_left(peer: Peer, spoilt: list[Request], name: str) -> None:
    """The client closes because of what it got: the deadline of its request is later than this waits."""
    assert peer.wait_for(lambda: bool(spoilt), GRACE_S), "the request was not sent"
    assert has_left(peer, connection(peer, spoilt[0].connection)), f"{name} leaves the connection open"


@law("P-REQ-6", "P-BROKEN-2", "P-BROKEN-3", "P-GET-1")
def test_an_answer_that_fits_no_request_ends_the_connection(subject: ClientSubject) -> None:
    """After an answer with an unknown id, another type or number of results, the client closes and returns no value."""
    for name, spoil in WRONG_REQUEST.items():
        _ends(subject, name, spoil)


@law("P-BROKEN-2", "P-BROKEN-3", "P-MSG-1", "P-MSG-2", "P-FRAME-3")
def test_what_is_no_message_ends_the_connection(subject: ClientSubject) -> None:
    """After a payload without a type and an id, too long, or of an unknown type, the client closes."""
    for name, spoil in WRONG_STREAM.items():
        _ends(subject, name, spoil)


@law("P-BROKEN-2", "P-MSG-3", "P-MSG-5", "P-MSG-6", "P-MSG-9", "P-GET-2")
def test_values_that_break_their_table_end_the_connection(subject: ClientSubject) -> None:
    """After Values with an element of a wrong type, number or range, the client closes."""
    for name, spoil in WRONG_VALUES.items():
        _ends(subject, name, spoil)


@law("P-BROKEN-2", "P-MSG-3", "P-MSG-5", "P-MSG-6", "P-MSG-7", "P-MSG-8")
def test_a_failure_that_breaks_its_table_ends_the_connection(subject: ClientSubject) -> None:
    """After a Failure with a code or details of a wrong type or range, the client closes."""
    for name, spoil in WRONG_FAILURES.items():
        _ends(subject, name, spoil)


@law("P-BROKEN-2", "P-DESC-1", "P-MSG-5", "P-MSG-7", "P-MSG-9")
def test_a_description_that_breaks_its_table_ends_the_connection(subject: ClientSubject) -> None:
    """After a Description with wrong entries, the client closes and lists nothing."""
    for name, entries in WRONG_ENTRIES.items():
        spoilt: list[Request] = []
        with Peer() as peer:
            peer.answer = _describes(peer, spoilt, entries)
            with client_of(subject, peer) as client:
                waiting = client.start_describe("job", timeout_s=LATER_S)
                _is_left(peer, spoilt, name)
                outcome = waiting.outcome()
                states = outcome.body.get("states", ())
                assert outcome.failed or [state["name"] for state in states] == ["state"], f"{name} gives {outcome}"
                keeps_working(subject, peer, client)


def _describes(peer: Peer, spoilt: list[Request], entries: Any) -> Callable[[Request], Iterable[object]]:
    def answer(request: Request) -> Iterable[object]:
        if request.type != frames.DESCRIBE or spoilt:
            return peer.honest(request)
        spoilt.append(request)
        return [message(frames.DESCRIPTION, request.id, entries)]

    return answer


@law("P-FRAME-3")
def test_a_frame_over_the_limit_of_the_welcome_is_refused_by_its_length(subject: ClientSubject) -> None:
    """A length over max_frame of the Welcome ends the connection at once, before any of the payload has come."""
    over: list[Request] = []
    with Peer(max_frame=4096) as peer:

        def answer(request: Request) -> Iterable[object]:
            over.append(request)
            return [(4097).to_bytes(4, "big")] if len(over) == 1 else peer.honest(request)

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            waiting = client.start_get("key", timeout_s=LATER_S)
            _is_left(peer, over, "a length of 4097 where max_frame is 4096")
            waiting.outcome()


@law("P-REQ-6", "P-BROKEN-2")
@examples(0.2)
@given(offset=st.integers(1, (1 << 32) - 1), results=st.integers(0, 5).filter(lambda size: size != 1))
def test_any_wrong_id_and_any_wrong_number_end_the_connection(
    subject: ClientSubject, offset: int, results: int
) -> None:
    """After any wrong id or wrong number of results, the client closes and returns no value."""
    _ends(
        subject, f"an id that is off by {offset}", lambda number: frames.values((number + offset) % (1 << 32), [MARK])
    )
    _ends(subject, f"{results} results for one key", lambda number: frames.values(number, [MARK] * results))


@law("P-RETRY-5", "P-BROKEN-3", "P-CLOSE-1")
@examples(0.2)
@given(size=st.integers(0, 40), rough=st.booleans())
def test_an_answer_cut_by_the_end_of_the_connection_is_no_answer(
    subject: ClientSubject, size: int, rough: bool
) -> None:
    """When the connection ends anywhere in an answer, the request is UNAVAILABLE, and other requests continue."""
    cut: list[Request] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if cut:
                return peer.honest(request)
            cut.append(request)
            whole = frames.values(request.id, [MARK])
            return [whole[: min(size, len(whole) - 1)], HANG_UP if rough else CLOSE]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            _unavailable_or(client.get("key"), "key")
            keeps_working(subject, peer, client)


@law("P-BROKEN-2", "P-BROKEN-3", "P-RETRY-5")
@given(data=st.data())
def test_a_spoilt_byte_anywhere_harms_one_request_at_most(subject: ClientSubject, data: st.DataObject) -> None:
    """After a byte was changed, added or removed in an answer, the request has an outcome, and later ones their own."""
    position, byte = data.draw(st.integers(0, 200), label="position"), data.draw(st.binary(min_size=1, max_size=3))
    change = data.draw(st.sampled_from(["change", "add", "remove"]))
    spoilt: list[Request] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if spoilt:
                return peer.honest(request)
            spoilt.append(request)
            payload = frames.values(request.id, [pack("x" * 60)])[4:]
            start = position % len(payload)
            stop = start if change == "add" else start + len(byte)
            return [frame(payload[:start] + (b"" if change == "remove" else byte) + payload[stop:])]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            client.get("key", timeout_s=0.3)
            keeps_working(subject, peer, client)


@law("P-VALUE-2", "P-BROKEN-3")
@given(garbage=st.binary(max_size=40))
def test_a_value_that_is_garbage_is_a_failure_of_its_own(subject: ClientSubject, garbage: bytes) -> None:
    """A result that is not MessagePack, in sound Values, gives some value or fails; the connection stays open."""
    with Peer() as peer:
        answering_gets(
            peer,
            lambda request: (
                [frames.values(request.id, [garbage])] if request.keys[0] == "garbage" else peer.honest(request)
            ),
        )
        with client_of(subject, peer) as client:
            assert client.get("garbage").code in (None, "UNREADABLE")
            assert client.get("afterwards").value == "afterwards"


def _unavailable_or(outcome: Outcome, value: Any) -> None:
    assert outcome.code == "UNAVAILABLE" or outcome.value == value, outcome
