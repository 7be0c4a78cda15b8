"""Laws of the handshake: versions, tokens, what a sound Hello is, and who is turned away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import LIMITS
from qstate_conformance.server.messages import Welcome
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, check_each, check_untouched
from qstate_conformance.server.streams import HANDSHAKE_MAX_FRAME
from qstate_conformance.server.wire import Session, Stream, connect, frame, hello
from qstate_conformance.subjects import ServerSubject

_UNKNOWN_VERSION = 64_999


def _open(subject: ServerSubject) -> Stream:
    """A connection without a handshake, to a server that has room for it."""
    connect(subject).close()
    return Stream((subject.host, subject.port))


def _versions(subject: ServerSubject) -> set[int]:
    """The versions that the server says it speaks."""
    with _open(subject) as stream:
        stream.send(hello((_UNKNOWN_VERSION,), subject.token))
        notice = stream.receive_close_notice(Code.VERSION_MISMATCH)
    text = notice.details.get("versions")
    assert isinstance(text, str) and text, f"P-HELLO-3: the detail versions is {text!r}"
    return {int(part) for part in text.split(",")}


@law("P-HELLO-2", "P-MSG-2", "P-FRAME-1", "P-FRAME-2", "P-VERSION-1")
def test_a_sound_hello_is_welcomed(subject: ServerSubject) -> None:
    """A sound Hello is answered with a Welcome of id 0, whose limits are those of the fixture."""
    with connect(subject) as session:
        assert session.welcome.version == 1
        assert session.welcome.max_frame == LIMITS.max_frame, "configure the fixture's max_frame"
        assert session.welcome.max_keys == LIMITS.max_keys, "configure the fixture's max_keys"
        session.ping()


@law("P-HELLO-2", "P-HELLO-3", "P-FAIL-3")
def test_no_version_in_common_is_refused_with_the_versions(subject: ServerSubject) -> None:
    """A client without a common version gets VERSION_MISMATCH with the versions of the server, which closes."""
    assert 1 in _versions(subject)


@law("P-HELLO-3")
@examples(0.5)
@given(extra=st.sets(st.integers(1, 65_535), max_size=20), order=st.randoms(use_true_random=False))
def test_the_highest_version_in_common_is_chosen(subject: ServerSubject, extra: set[int], order: Any) -> None:
    """Of several versions in a Hello, in any order, the server chooses the highest that it speaks."""
    spoken = _versions(subject)
    for offered in (extra | spoken, extra, {max(spoken), *range(1000, 1063)}, {min(spoken), _UNKNOWN_VERSION}):
        versions = sorted(offered)
        order.shuffle(versions)
        if not versions:
            continue
        with _open(subject) as stream:
            stream.send(hello(versions, subject.token))
            if not offered & spoken:
                stream.receive_close_notice(Code.VERSION_MISMATCH)
                continue
            welcome = stream.receive()
        assert isinstance(welcome, Welcome), f"P-HELLO-2: {welcome} for versions {versions}"
        assert welcome.version == max(offered & spoken), f"{welcome.version} of {versions}, of which it speaks {spoken}"


#: What a client of a later version may append: anything that a message of version 1 may contain.
#: Features and max_frame of a Hello, which may be left out.
_LAST: tuple[Any, ...] = ((), 1 << 24)
_LATER = st.lists(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), strategies.texts, st.binary()),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(strategies.names, inner, max_size=4)),
        max_leaves=6,
    ),
    min_size=1,
    max_size=4,
)


@law("P-HELLO-5", "P-VERSION-1", "P-VERSION-2")
@examples(0.5)
@given(later=_LATER)
def test_elements_after_those_of_the_hello_are_ignored(subject: ServerSubject, later: list[Any]) -> None:
    """Elements after those that the reference has in a Hello are ignored, whatever they are."""
    with _open(subject) as stream:
        stream.send(frame(pack((Type.HELLO, 0, (1,), subject.token, "", *_LAST, *later))))
        found = stream.receive()
    assert isinstance(found, Welcome), f"P-HELLO-5: {found} for a Hello with {later} behind it"


@law("P-HELLO-5")
def test_an_array_of_any_length_after_the_elements_of_the_hello_is_ignored(subject: ServerSubject) -> None:
    """Only the frame limits the elements after the known ones of a Hello, not limits of other messages."""
    for length in (65, LIMITS.max_keys + 1, 60_000):
        with _open(subject) as stream:
            stream.send(frame(pack((Type.HELLO, 0, (1,), subject.token, "", *_LAST, (0,) * length))))
            found = stream.receive()
        assert isinstance(found, Welcome), f"P-HELLO-5: {found} for a Hello with an array of {length} behind it"


def _other_tokens(token: bytes) -> st.SearchStrategy[bytes | None]:
    last = bytes((token[-1] ^ 1,)) if token else b"\1"
    near = [None, b"", token[:-1], token + b"\0", token[:-1] + last, token * 2, b"\0" * 4096]
    return st.one_of(st.sampled_from(near), st.binary(max_size=4096)).filter(lambda found: found != token)


@law("P-HELLO-2", "P-HELLO-6")
@examples(0.5)
@given(data=st.data())
def test_a_wrong_token_or_none_is_refused(subject: ServerSubject, data: st.DataObject) -> None:
    """A server that requires a token refuses a Hello without it or with a wrong one: UNAUTHENTICATED, and it closes."""
    if subject.token is None:
        pytest.skip("the server wants no token: run the suite once more with one that does")
    wrong = data.draw(_other_tokens(subject.token))
    with _open(subject) as stream:
        stream.send(hello(token=wrong))
        stream.receive_close_notice(Code.UNAUTHENTICATED)


@law("P-HELLO-2", "P-HELLO-6")
def test_every_bit_of_a_token_counts(subject: ServerSubject) -> None:
    """A token that differs from the right one in a letter's case, in space around it or in any one byte is refused."""
    if (token := subject.token) is None:
        pytest.skip("the server wants no token: run the suite once more with one that does")
    near = {token.swapcase(), token.lower(), token.upper(), token.title(), token.strip(), token[::-1]}
    near |= {
        b" " + token,
        token + b" ",
        token + b"\n",
        b"\xef\xbb\xbf" + token,
        token + b"\0",
        token.replace(b" ", b""),
    }
    near |= {token[:place] + bytes((token[place] ^ 1,)) + token[place + 1 :] for place in range(len(token))}

    def check(wrong: bytes) -> None:
        with _open(subject) as stream:
            stream.send(hello(token=wrong))
            stream.receive_close_notice(Code.UNAUTHENTICATED)

    check_each({repr(wrong): wrong for wrong in sorted(near - {token})}, check)


@law("P-HELLO-6")
@examples(0.5)
@given(token=st.none() | st.binary(max_size=4096))
def test_a_server_that_wants_no_token_ignores_it(subject: ServerSubject, token: bytes | None) -> None:
    """A server that requires no token welcomes clients with any token."""
    if subject.token is not None:
        pytest.skip("the server wants a token: run the suite once more with one that does not")
    Session((subject.host, subject.port), token).close()


def _unsound_hellos(token: bytes | None) -> dict[str, Any]:
    return {
        "a request": (Type.PING, 1),
        "a get": (Type.GET, 1, 1000, TEMPERATURE, None, {}, ("JFK",)),
        "a get with an unknown option": (Type.GET, 1, 1000, TEMPERATURE, None, {"unheard": 1}, ("JFK",)),
        "a get with a key that is none": (Type.GET, 1, 1000, TEMPERATURE, None, {}, (None,)),
        "an answer": (Type.PONG, 1),
        "a type that does not exist": (99, 0),
        "a type that does not exist, with an id": (99, 1),
        "a failure of id 0": (Type.FAILURE, 0, 1, {}),
        "too few elements": (Type.HELLO, 0, (1,), token),
        "an id": (Type.HELLO, 1, (1,), token, ""),
        "no versions": (Type.HELLO, 0, (), token, ""),
        "65 versions": (Type.HELLO, 0, tuple(range(1, 66)), token, ""),
        "200 versions": (Type.HELLO, 0, tuple(range(1, 201)), token, ""),
        "version 0": (Type.HELLO, 0, (0, 1), token, ""),
        "version 65536": (Type.HELLO, 0, (1, 65_536), token, ""),
        "a version as a float": (Type.HELLO, 0, (1.0,), token, ""),
        "a version as a boolean": (Type.HELLO, 0, (True,), token, ""),
        "versions that are no array": (Type.HELLO, 0, 1, token, ""),
        "a token as a string": (Type.HELLO, 0, (1,), "open sesame", ""),
        "a token of 4097 bytes": (Type.HELLO, 0, (1,), b"x" * 4097, ""),
        "a client that is nil": (Type.HELLO, 0, (1,), token, None),
        "a client as a binary": (Type.HELLO, 0, (1,), token, b"client"),
        "a client of 256 characters": (Type.HELLO, 0, (1,), token, "é" * 256),
        "no array": {"versions": 1},
        "one element": (Type.HELLO,),
    }


@law("P-HELLO-1", "P-HELLO-2", "P-FAIL-3", "P-CLOSE-3")
def test_a_first_message_that_is_no_sound_hello_is_malformed(subject: ServerSubject) -> None:
    """A first message that is not a sound Hello is MALFORMED, and the server closes."""

    def check(opening: Any) -> None:
        with _open(subject) as stream:
            stream.send(frame(pack(opening)))
            stream.receive_close_notice(Code.MALFORMED)

    check_each(_unsound_hellos(subject.token), check)


@law("P-HELLO-2", "P-MSG-5")
@given(client=st.one_of(st.text(max_size=255), st.just("\U0001f600" * 255)))
def test_a_client_names_itself_as_it_likes(subject: ServerSubject, client: str) -> None:
    """The client's name is any string of at most 255 characters, counted in code points."""
    try:
        opening = hello(token=subject.token, client=client)
    except UnicodeEncodeError:  # half a surrogate pair is no character
        return
    with _open(subject) as stream:
        stream.send(opening)
        assert isinstance(stream.receive(), Welcome)


@law("P-FRAME-2", "P-FRAME-3", "P-HELLO-5")
@examples(0.2)
@given(size=st.one_of(st.just(HANDSHAKE_MAX_FRAME), st.integers(4096, HANDSHAKE_MAX_FRAME)))
def test_a_hello_may_be_as_large_as_the_protocol_says(subject: ServerSubject, size: int) -> None:
    """A Hello of up to 65536 bytes is read, for the client cannot know the server's max_frame yet."""
    opening = pack((Type.HELLO, 0, (1,), subject.token, "", *_LAST))
    # One element more, a binary whose header has three bytes.
    padded = b"\x98" + opening[1:] + b"\xc5" + (size - len(opening) - 3).to_bytes(2, "big")
    with _open(subject) as stream:
        stream.send(frame(padded.ljust(size, b"\0")))
        found = stream.receive()
    assert isinstance(found, Welcome), f"P-FRAME-2: {found} for a Hello of {size} bytes"


@law("P-FRAME-3", "P-BROKEN-1")
@examples(0.2)
@given(length=st.integers(HANDSHAKE_MAX_FRAME + 1, (1 << 32) - 1))
def test_a_larger_frame_before_the_welcome_is_refused_by_its_length(subject: ServerSubject, length: int) -> None:
    """Before the Welcome, a length over 65536 is TOO_LARGE at once, without a byte of its payload."""
    with _open(subject) as stream:
        stream.send(length.to_bytes(4, "big"))
        stream.receive_close_notice(Code.TOO_LARGE)


@law("P-MSG-4", "P-FRAME-4", "P-VERSION-1")
@examples(0.5)
@given(data=st.data())
def test_a_hello_may_come_in_any_form_and_in_pieces(subject: ServerSubject, data: st.DataObject) -> None:
    """A Hello is welcomed in every MessagePack form, and however it is cut into reads."""
    payload = data.draw(strategies.in_any_form((0, 0, (1, _UNKNOWN_VERSION), subject.token, "client")))
    opening = frame(payload)
    with _open(subject) as stream:
        stream.send_in_pieces(opening, data.draw(strategies.cuts(len(opening))))
        assert isinstance(stream.receive(), Welcome)


@law("P-HELLO-7", "P-FAIL-3", "P-BROKEN-3")
def test_a_silent_client_is_told_that_it_took_too_long(subject: ServerSubject) -> None:
    """Connections without a whole handshake get DEADLINE_EXCEEDED and are closed; others are not."""
    with connect(subject) as other, _open(subject) as silent, Stream((subject.host, subject.port)) as slow:
        slow.send(hello(token=subject.token)[:-1])
        silent.receive_close_notice(Code.DEADLINE_EXCEEDED)
        slow.receive_close_notice(Code.DEADLINE_EXCEEDED)
        check_untouched(subject, other)
