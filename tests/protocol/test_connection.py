"""Laws of a connection: the allowed messages, their answers, and the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qstate.errors import FailureCode, LocalProtocolError, RemoteProtocolError
from qstate.protocol.codec import encode, frame
from qstate.protocol.connection import (
    BadRequest,
    BrokenConnection,
    ClientConnection,
    ConnectionState,
    Opened,
    Request,
    ServerConnection,
)
from qstate.protocol.limits import MAX_ID
from qstate.protocol.messages import (
    Describe,
    Description,
    Failure,
    Get,
    Hello,
    Locate,
    Location,
    Message,
    Ping,
    Pong,
    Values,
    Welcome,
)
from tests.protocol.strategies import almost_payloads, messages, requests

STATE_ID = bytes(16)
STATE = {
    "name": "s",
    "kind": "value",
    "serializer": "msgpack",
    "serializer_version": 1,
    "fingerprint": "f",
    "key_types": ("string",),
    "namespace_types": None,
    "value_type": "float",
    "capabilities": (),
}
ANSWERED: list[tuple[Request, Message]] = [
    (Get(1, 10, STATE_ID, None, {}, ("a", "b")), Values(1, (4, 4), (b"x", None), "f")),
    (Locate(1, 10, "j", "s"), Location(1, STATE, 128, ((0, 128, "h", 9067, STATE_ID),))),
    (Describe(1, 10, None), Description(1, ({"job": "j"},))),
    (Ping(1), Pong(1)),
]


def wire(*messages: Message) -> bytes:
    return b"".join(frame(encode(message)) for message in messages)


def opened(**options: Any) -> tuple[ClientConnection, ServerConnection]:
    client, server = ClientConnection(client="test"), ServerConnection(**options)
    (event,) = server.receive(client.start())
    assert isinstance(event, Opened)
    assert client.receive(event.reply) == [client.welcome]
    return client, server


def close_notice(error: BrokenConnection) -> Failure:
    client = ClientConnection()
    (event,) = client.receive(error.close_notice)
    assert isinstance(event, Failure)
    assert client.closed
    return event


# --- handshake -------------------------------------------------------------------------------------------------


def test_the_handshake_informs_both_sides() -> None:
    client = ClientConnection(client="app", token=b"secret")
    server = ServerConnection(server="qstate", features=("x",), accepts=secret_only, max_frame=8192, max_keys=7)
    (event,) = server.receive(client.start())
    assert isinstance(event, Opened)
    assert (event.client, event.version, server.state) == ("app", 1, ConnectionState.OPEN)
    assert client.receive(event.reply) == [Welcome(1, "qstate", ("x",), 8192, 7)]
    assert client.state is ConnectionState.OPEN
    assert (client.limits.max_frame, client.limits.max_keys) == (8192, 7)


def test_the_highest_version_in_common_is_chosen() -> None:
    server = ServerConnection(versions=(1, 2, 4))
    (event,) = server.receive(ClientConnection(versions=(1, 2, 3)).start())
    assert isinstance(event, Opened)
    assert event.version == 2


def test_without_a_version_in_common_the_client_gets_the_servers_versions() -> None:
    client, server = ClientConnection(versions=(7,)), ServerConnection(versions=(1, 2))
    with pytest.raises(BrokenConnection) as caught:
        server.receive(client.start())
    assert client.receive(caught.value.close_notice) == [Failure(0, FailureCode.VERSION_MISMATCH, {"versions": "1,2"})]
    assert client.closed
    assert server.closed


def secret_only(token: bytes | None) -> bool:
    return token == b"secret"


@pytest.mark.parametrize("token", [None, b"", b"wrong", b"secret and more"])
def test_a_client_without_the_right_token_is_refused(token: bytes | None) -> None:
    server = ServerConnection(accepts=secret_only)
    with pytest.raises(BrokenConnection) as caught:
        server.receive(ClientConnection(token=token).start() + wire(Ping(1)))
    assert caught.value.events == ()
    assert close_notice(caught.value) == Failure(0, FailureCode.UNAUTHENTICATED, {})


def test_a_server_without_a_token_ignores_the_clients_token() -> None:
    (event,) = ServerConnection().receive(ClientConnection(token=b"any").start())
    assert isinstance(event, Opened)


@pytest.mark.parametrize(
    "first",
    [wire(Ping(1)), wire(Welcome(1, "", (), 4096, 1)), wire(Failure(0, 1, {})), frame(b"\xc1"), b"GET / HTTP/1.1\r\n"],
    ids=["request", "welcome", "failure", "not MessagePack", "another protocol"],
)
def test_anything_before_hello_ends_the_connection(first: bytes) -> None:
    server = ServerConnection()
    with pytest.raises(BrokenConnection) as caught:
        server.receive(first)
    assert close_notice(caught.value).code in (FailureCode.MALFORMED, FailureCode.TOO_LARGE)
    assert server.closed
    assert server.receive(ClientConnection().start()) == []


def test_before_the_handshake_a_frame_is_small() -> None:
    server = ServerConnection(max_frame=1 << 20)
    with pytest.raises(BrokenConnection) as caught:
        server.receive((64 * 1024 + 1).to_bytes(4, "big"))
    assert close_notice(caught.value) == Failure(0, FailureCode.TOO_LARGE, {"limit": 64 * 1024})
    _, server = opened(max_frame=1 << 20)
    assert server.receive((1 << 20).to_bytes(4, "big")) == []


def test_a_client_sends_no_request_before_the_welcome() -> None:
    client = ClientConnection()
    client.start()
    with pytest.raises(LocalProtocolError):
        client.send(Ping(1))


@pytest.mark.parametrize(
    "first",
    [wire(Pong(1)), wire(Failure(3, 1, {})), wire(Hello((1,), None, "")), wire(Welcome(2, "", (), 4096, 1))],
    ids=["answer", "failure of a request", "hello", "a version that was not offered"],
)
def test_a_client_refuses_a_server_that_does_not_welcome_it(first: bytes) -> None:
    client = ClientConnection()
    with pytest.raises(RemoteProtocolError):
        client.receive(first)
    assert client.closed


# --- requests and answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "answer"), ANSWERED, ids=lambda message: type(message).__name__)
def test_each_request_has_one_answer_of_its_type(request_: Request, answer: Any) -> None:
    client, server = opened()
    assert server.receive(client.send(request_)) == [request_]
    assert client.waiting == server.waiting == (1,)
    for _, other in ANSWERED:
        if type(other) is not type(answer):
            with pytest.raises(LocalProtocolError):
                server.send(other)  # type: ignore[arg-type]
    assert client.receive(server.send(answer)) == [answer]
    assert client.waiting == server.waiting == ()
    with pytest.raises(LocalProtocolError):
        server.send(answer)


@pytest.mark.parametrize(("request_", "answer"), ANSWERED, ids=lambda message: type(message).__name__)
def test_a_failure_answers_any_request(request_: Request, answer: Any) -> None:
    client, server = opened()
    server.receive(client.send(request_))
    failure = Failure(1, FailureCode.OVERLOADED, {"retry_after_ms": 5})
    assert client.receive(server.send(failure)) == [failure]
    assert client.waiting == server.waiting == ()


@pytest.mark.parametrize(("request_", "answer"), ANSWERED, ids=lambda message: type(message).__name__)
def test_a_client_refuses_answers_of_other_requests(request_: Request, answer: Any) -> None:
    for other in [
        *(other for _, other in ANSWERED if type(other) is not type(answer)),
        answer._replace(id=2),
        Failure(2, 1, {}),
        Values(1, (1,), (None,), "f"),
        request_,
        Welcome(1, "", (), 4096, 1),
    ]:
        client, _ = opened()
        client.send(request_)
        with pytest.raises(BrokenConnection):
            client.receive(wire(other))
        assert client.close() == (1,)


def test_answers_may_come_in_any_order() -> None:
    client, server = opened()
    ids = [client.next_id() for _ in range(5)]
    assert ids == [1, 2, 3, 4, 5]
    server.receive(b"".join(client.send(Ping(number)) for number in ids))
    out_of_order = [3, 1, 5, 2, 4]
    assert client.receive(b"".join(server.send(Pong(number)) for number in out_of_order)) == list(
        map(Pong, out_of_order)
    )


def test_an_id_in_use_is_not_sent_again() -> None:
    client, server = opened()
    server.receive(client.send(Ping(1)))
    with pytest.raises(LocalProtocolError):
        client.send(Ping(1))
    client.receive(server.send(Pong(1)))
    assert server.receive(client.send(Ping(1))) == [Ping(1)]


def test_ids_start_over_and_skip_those_in_use() -> None:
    client, _ = opened()
    client.send(Ping(1))
    client._ids = iter([MAX_ID, MAX_ID + 1])  # type: ignore[assignment]
    assert client.next_id() == MAX_ID
    assert client.next_id() == 2


def test_the_client_keeps_the_servers_limits() -> None:
    client, _ = opened(max_keys=2, max_frame=4096)
    for keys in ((1, 2, 3), ("x" * 5000,)):
        with pytest.raises(LocalProtocolError) as caught:
            client.send(Get(1, 10, STATE_ID, None, {}, keys))
        assert caught.value.code is FailureCode.TOO_LARGE
    assert client.waiting == ()


def test_an_answer_over_the_limit_leaves_its_request_waiting() -> None:
    client, server = opened(max_frame=4096)
    server.receive(client.send(Get(1, 10, STATE_ID, None, {}, (1,))))
    with pytest.raises(LocalProtocolError) as caught:
        server.send(Values(1, (1,), (bytes(5000),), "f"))
    assert caught.value.code is FailureCode.TOO_LARGE
    failure = Failure(1, FailureCode.TOO_LARGE, {"limit": 4096})
    assert client.receive(server.send(failure)) == [failure]


def test_values_for_another_number_of_keys_are_not_sent() -> None:
    client, server = opened()
    server.receive(client.send(Get(1, 10, STATE_ID, None, {}, (1, 2))))
    with pytest.raises(LocalProtocolError):
        server.send(Values(1, (1,), (None,), "f"))
    assert server.waiting == (1,)


# --- bad requests ------------------------------------------------------------------------------------------------


def raw(*fields: object) -> bytes:
    return frame(msgpack.packb(fields))


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (raw(2, 9, 10, STATE_ID, None, {}, ()), FailureCode.MALFORMED),
        (raw(2, 9, 10, STATE_ID, None, {}, (1.5,)), FailureCode.WRONG_KEY_TYPE),
        (raw(2, 9, 10, STATE_ID, None, {"new": 1}, (1,)), FailureCode.UNSUPPORTED),
        (raw(2, 9, 10, STATE_ID, None, {}, tuple(range(200))), FailureCode.TOO_LARGE),
        (raw(77, 9, "from a newer client"), FailureCode.UNSUPPORTED),
        (raw(3, 9, (1,), (None,)), FailureCode.UNSUPPORTED),
        (raw(10, 9, 1, {}), FailureCode.UNSUPPORTED),
        (raw(0, 9, (1,), None, ""), FailureCode.UNSUPPORTED),
    ],
    ids=["no keys", "float key", "option", "too many keys", "type", "answer", "failure", "hello with an id"],
)
def test_a_bad_request_fails_alone(bad: bytes, code: FailureCode) -> None:
    client, server = opened(max_keys=100)
    first, event, second = server.receive(client.send(Ping(1)) + bad + client.send(Ping(2)))
    assert (first, second) == (Ping(1), Ping(2))
    assert isinstance(event, BadRequest)
    assert (event.id, event.code) == (9, code)
    server.send(Failure(*event))
    assert client.receive(server.send(Pong(1)) + server.send(Pong(2))) == [Pong(1), Pong(2)]
    with pytest.raises(LocalProtocolError):
        server.send(Failure(*event))


def test_a_second_request_with_an_id_in_use_is_bad_and_the_first_is_still_answered() -> None:
    _, server = opened()
    first, *others = server.receive(wire(Ping(1), Ping(1), Describe(1, 10, None)))
    assert first == Ping(1)
    assert [(type(event), event[0], event[1]) for event in others] == [(BadRequest, 1, FailureCode.MALFORMED)] * 2
    server.send(Failure(1, FailureCode.MALFORMED, {}))
    server.send(Pong(1))
    server.send(Failure(1, FailureCode.MALFORMED, {}))
    for answer in (Pong(1), Failure(1, FailureCode.MALFORMED, {})):
        with pytest.raises(LocalProtocolError):
            server.send(answer)


@pytest.mark.parametrize(
    "broken",
    [
        frame(b"\xc1"),
        frame(b""),
        raw(2, 0, 10, STATE_ID, None, {}, (1,)),
        raw("get", 1),
        wire(Hello((1,), None, "")),
        wire(Failure(0, 1, {})),
        b"\xff\xff\xff\xff",
    ],
    ids=["not MessagePack", "empty", "id 0", "no type", "second hello", "failure 0", "oversized"],
)
def test_a_broken_frame_ends_the_connection_after_the_valid_ones(broken: bytes) -> None:
    client, server = opened()
    with pytest.raises(BrokenConnection) as caught:
        server.receive(wire(Ping(1)) + broken + wire(Ping(2)))
    assert caught.value.events == (Ping(1),)
    (event,) = client.receive(caught.value.close_notice)
    assert isinstance(event, Failure)
    assert (event.id, event.code) == (0, caught.value.code)
    assert client.closed
    with pytest.raises(LocalProtocolError):
        server.send(Pong(1))


# --- the end -----------------------------------------------------------------------------------------------------


def test_failure_zero_closes_both_sides_and_close_returns_the_waiting_requests() -> None:
    client, server = opened()
    server.receive(client.send(Ping(1)) + client.send(Ping(2)))
    goodbye = Failure(0, FailureCode.SHUTTING_DOWN, {})
    assert client.receive(server.send(goodbye) + wire(Pong(1))) == [goodbye]
    assert server.closed
    assert client.close() == (1, 2)
    assert server.close() == (1, 2)
    assert client.close() == server.close() == ()
    for send in (lambda: client.send(Ping(3)), lambda: server.send(Pong(1))):
        with pytest.raises(LocalProtocolError):
            send()
    assert client.receive(wire(Pong(1))) == []
    assert server.receive(wire(Ping(3))) == []


def test_neither_side_sends_the_others_messages() -> None:
    client, server = opened()
    server.receive(client.send(Ping(1)))
    for message in (Pong(1), Welcome(1, "", (), 4096, 1), Failure(1, 1, {})):
        with pytest.raises(LocalProtocolError):
            client.send(message)  # type: ignore[arg-type]
    for message in (Ping(1), Hello((1,), None, ""), Get(1, 10, STATE_ID, None, {}, (1,))):
        with pytest.raises(LocalProtocolError):
            server.send(message)  # type: ignore[arg-type]


# --- any bytes ---------------------------------------------------------------------------------------------------


def outcome(receive: Callable[[bytes], Sequence[Any]], parts: Sequence[bytes]) -> tuple[list[Any], Any]:
    """The events of bytes that come in parts, and the error at the end."""
    events: list[Any] = []
    for part in parts:
        try:
            events += receive(part)
        except BrokenConnection as error:
            return [*events, *error.events], (error.code, error.close_notice)
    return events, None


frames = almost_payloads.map(frame) | messages.map(wire) | requests.map(wire) | st.binary(max_size=8)
streams = st.lists(frames, max_size=4).map(b"".join)


@settings(max_examples=8 * settings.default.max_examples)
@given(streams, st.booleans(), st.lists(st.integers(0, 400), max_size=6))
def test_a_server_gives_the_same_events_however_the_bytes_are_split(
    stream: bytes, greeted: bool, cuts: list[int]
) -> None:
    stream = (ClientConnection().start() if greeted else b"") + stream
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    expected = outcome(ServerConnection(max_keys=50).receive, [stream])
    for parts in (
        [stream[place : place + 1] for place in range(len(stream))],
        [stream[start:stop] for start, stop in pairwise(bounds)],
    ):
        assert outcome(ServerConnection(max_keys=50).receive, parts) == expected


@settings(max_examples=8 * settings.default.max_examples)
@given(streams, st.booleans())
def test_a_client_gives_the_same_events_however_the_bytes_are_split(stream: bytes, greeted: bool) -> None:
    stream = (wire(Welcome(1, "", (), 1 << 20, 100)) if greeted else b"") + stream

    def client() -> ClientConnection:
        connection = ClientConnection()
        connection.receive(wire(Welcome(1, "", (), 1 << 20, 100)))
        for number in range(1, 5):
            connection.send(Ping(number))
        return connection

    whole, single = (client(), client()) if not greeted else (ClientConnection(), ClientConnection())
    assert outcome(whole.receive, [stream]) == outcome(
        single.receive, [stream[place : place + 1] for place in range(len(stream))]
    )
    assert whole.state is single.state
    assert whole.close() == single.close()


@settings(max_examples=4 * settings.default.max_examples)
@given(st.lists(requests, max_size=6))
def test_every_valid_request_reaches_the_server_unchanged(sent: list[Any]) -> None:
    client, server = opened()
    numbered = [request._replace(id=client.next_id() + index) for index, request in enumerate(sent)]
    assert server.receive(b"".join(map(client.send, numbered))) == numbered
    failures = [Failure(request.id, FailureCode.INTERNAL, {}) for request in numbered]
    assert client.receive(b"".join(map(server.send, failures))) == failures
