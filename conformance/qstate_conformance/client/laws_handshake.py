"""The handshake: what a client says first, and what it makes of the answer."""

from __future__ import annotations

import time

from hypothesis import assume, given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S
from qstate_conformance.client.peer import CLOSE, Connection, Peer
from qstate_conformance.client.stage import always, client_of, connection, has_left, keeps_working
from qstate_conformance.client.strategies import message_values, names
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

#: What is no sound answer to a Hello.
BROKEN_GREETINGS = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no MessagePack": frames.frame(b"\xc1"),
    "an empty payload": frames.frame(b""),
    "an array without an id": frames.message(1),
    "a map": frames.frame(b"\x81\x01\x00"),
    "bytes after the message": frames.frame(frames.welcome()[4:] + b"\xc0"),
    "an answer": frames.pong(1),
    "an unknown type": frames.message(99, 0),
    "a Hello": frames.message(0, 0, [1], None, ""),
    "a Welcome with an id": frames.message(1, 7, 1, "", [], 65536, 10),
    "a short Welcome": frames.message(1, 0, 1, "", [], 65536),
    "version 0": frames.welcome(0),
    "a version that is a boolean": frames.message(1, 0, True, "", [], 65536, 10),
    "a version that is text": frames.message(1, 0, "1", "", [], 65536, 10),
    "a max_frame below the least": frames.welcome(max_frame=4095),
    "a max_frame above the most": frames.welcome(max_frame=1 << 32),
    "no keys at all": frames.welcome(max_keys=0),
    "more keys than the most": frames.welcome(max_keys=(1 << 20) + 1),
    "features that are no array": frames.message(1, 0, 1, "", "scan", 65536, 10),
    "a feature that is no name": frames.message(1, 0, 1, "", [1], 65536, 10),
    "too many features": frames.welcome(features=tuple(f"feature {number}" for number in range(33))),
    "a server of 256 characters": frames.welcome(server="é" * 256),
    "a server that is binary": frames.message(1, 0, 1, b"x", [], 65536, 10),
    "a Failure with an id": frames.failure(1, 19),
    "a Failure without details": frames.message(10, 0, 19),
}


@law("P-HELLO-1", "P-MSG-2", "P-VERSION-1")
def test_hello_comes_first_and_nothing_more_before_the_welcome(subject: ClientSubject) -> None:
    """The first message of every connection is a sound Hello, and no request follows it before the Welcome."""
    with Peer(greet=always()) as peer:
        with client_of(subject, peer, timeout_s=0.3) as client:
            assert client.get("key", timeout_s=0.3).failed
        made = connection(peer)
        assert peer.wait_for(lambda: made.hello is not None, GRACE_S), "the client sent no Hello"
        assert peer.requests == []
        assert peer.faults == []


@law("P-HELLO-8", "P-HELLO-2", "P-VERSION-1")
@examples(0.1)
@given(token=st.none() | st.binary(max_size=64) | st.just(bytes(4096)))
def test_the_token_travels_as_it_is(subject: ClientSubject, token: bytes | None) -> None:
    """The Hello carries the token that the client was given, byte for byte, or nil when it was given none."""
    with Peer() as peer, client_of(subject, peer, token=token) as client:
        assert client.get("key").value == "key"
        assert [made.hello.elements[3] for made in peer.connections if made.hello] == [token]
        assert peer.faults == []


@law("P-HELLO-4")
@examples(0.1)
@given(version=st.integers(2, 65535) | st.sampled_from([2, 65535]))
def test_a_version_that_was_not_offered_is_refused(subject: ClientSubject, version: int) -> None:
    """A Welcome with a version that the Hello did not offer ends the connection, and no request is sent on it."""
    offered: list[int] = []

    def greet(made: Connection) -> list[bytes]:
        assert made.hello is not None
        offered.extend(made.hello.elements[2])
        return [frames.welcome(version)]

    with Peer(greet=greet) as peer, client_of(subject, peer, timeout_s=0.2) as client:
        outcome = client.get("key", timeout_s=0.2)
        assume(version not in offered)
        assert outcome.failed, f"the client went on with version {version}"
        assert peer.requests == []
        assert has_left(peer, connection(peer))


@law("P-HELLO-5", "P-VERSION-2")
@examples(0.2)
@given(more=st.lists(message_values, max_size=4), features=st.lists(names, max_size=32))
def test_what_a_newer_server_adds_to_its_welcome_is_ignored(
    subject: ClientSubject, more: list[object], features: list[str]
) -> None:
    """A client ignores unknown elements at the end of the Welcome, and unknown features."""
    greeting = frames.welcome(features=tuple(features), more=tuple(more))
    assume(len(greeting) <= 65536)
    with Peer(greet=always(greeting)) as peer, client_of(subject, peer) as client:
        assert client.get("key").value == "key"


@law("P-HELLO-5")
def test_the_last_elements_of_a_welcome_may_be_left_out(subject: ClientSubject) -> None:
    """A client takes a Welcome without `max_in_flight` and `idle_timeout_ms`, and one without the latter."""
    for last in ((), (7,), (1, (1 << 32) - 1)):
        with Peer(greet=always(frames.welcome(last=last))) as peer, client_of(subject, peer) as client:
            assert client.get("key").value == "key", last


@law("P-MSG-5", "P-HELLO-5")
def test_a_server_names_itself_as_it_likes(subject: ClientSubject) -> None:
    """A Welcome is sound with any text of at most 255 characters as the server's name, counted in code points."""
    for name in ("", "x" * 255, "é" * 255, "\U0001f600" * 255, "\0", "\r\n"):
        with Peer(greet=always(frames.welcome(server=name))) as peer, client_of(subject, peer) as client:
            outcome = client.get("key")
        assert outcome.value == "key", f"with the server {name[:9]!r} of {len(name)} characters, a get gives {outcome}"


@law("P-HELLO-7", "P-FAIL-1", "P-FAIL-3")
def test_a_failure_in_place_of_the_welcome_is_the_outcome(subject: ClientSubject) -> None:
    """A Failure that comes in place of the Welcome ends the request with its code or UNAVAILABLE, in time."""
    for name, code in {**frames.CODES, "INTERNAL": 999}.items():
        with Peer(greet=always(frames.failure(0, code, {"new": 1}), CLOSE)) as peer:
            with client_of(subject, peer, timeout_s=0.15) as client:
                outcome = client.get("key", timeout_s=0.15)
            assert outcome.code in (name, "UNAVAILABLE", "DEADLINE_EXCEEDED"), f"{name} became {outcome}"
            assert peer.requests == []


@law("P-HELLO-7", "P-BROKEN-3", "P-RETRY-5")
def test_a_server_that_has_no_room_once_is_used_later(subject: ClientSubject) -> None:
    """After a Failure in place of the Welcome that may pass, a later connection serves the client's requests."""
    for code in ("OVERLOADED", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"):
        refusal = frames.failure(0, frames.CODES[code], {"retry_after_ms": 1})

        def greet(made: Connection, refusal: bytes = refusal) -> list[object]:
            return [refusal, CLOSE] if made.number == 0 else [frames.welcome()]

        with Peer(greet=greet) as peer, client_of(subject, peer) as client:
            client.get("first")
            keeps_working(subject, peer, client)


@law("P-BROKEN-2", "P-HELLO-1", "P-MSG-1", "P-MSG-2", "P-MSG-5", "P-MSG-6")
def test_what_is_no_welcome_is_refused(subject: ClientSubject) -> None:
    """A client closes a connection whose first answer is neither a sound Welcome nor a Failure about it."""
    for name, greeting in BROKEN_GREETINGS.items():
        with Peer(greet=always(greeting)) as peer, client_of(subject, peer, timeout_s=0.2) as client:
            assert client.get("key", timeout_s=0.2).failed, f"the client went on after {name}"
            assert peer.requests == [], f"the client sent a request after {name}"
            assert has_left(peer, connection(peer)), f"the client kept the connection after {name}"


@law("P-FRAME-3")
def test_a_handshake_over_the_limit_is_refused_by_its_length(subject: ClientSubject) -> None:
    """Before the Welcome, a length over 65536 ends the connection at once, before any of the payload has come."""
    too_long = (65537).to_bytes(4, "big")
    with Peer(greet=lambda made: [too_long if made.number == 0 else frames.welcome()]) as peer:
        began = time.monotonic()
        with client_of(subject, peer, timeout_s=3 * GRACE_S) as client:
            waiting = None if client.number is None else client.start_get("key", timeout_s=3 * GRACE_S)
            assert has_left(peer, connection(peer))
            assert time.monotonic() - began < 3 * GRACE_S, "the client waited for the payload until its deadline"
        if waiting is not None:
            waiting.outcome()
