"""Both clients against peers that break the protocol: a typed error or a new attempt, in time, and nothing else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import DeadlineExceeded, QueryError, Unavailable, VersionMismatch
from qstate.protocol import Failure, Get, Location, Pong, ServerConnection, Values, Welcome, encode, frame
from tests.runtime.client.peer import FINGERPRINT, Peer, RawPeer

Ask = Callable[..., Any]


def ask_synchronously(address: tuple[str, int], timeout_s: float) -> Any:
    with QueryableStateClient(*address, timeout_s=timeout_s) as client:
        return client.get("job", "state", "JFK")


def ask_asynchronously(address: tuple[str, int], timeout_s: float) -> Any:
    async def main() -> Any:
        async with await AsyncQueryableStateClient.connect(*address, timeout_s=timeout_s) as client:
            return await client.get("job", "state", "JFK")

    return asyncio.run(main(), debug=True)


@pytest.fixture(params=[ask_synchronously, ask_asynchronously], ids=["sync", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    return request.param  # type: ignore[no-any-return]


WELCOME = frame(encode(Welcome(1, "raw", (), 1 << 24, 10_000)))


def greets_with(*data: bytes, then_close: bool = True) -> Callable[[socket.socket], None]:
    """Read the hello, send `data`, and close or stay silent."""

    def behave(sock: socket.socket) -> None:
        sock.recv(65536)
        for part in data:
            sock.sendall(part)
        while not then_close and sock.recv(65536):
            continue

    return behave


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x01\x90",
        frame(msgpack.packb([99, 0])),
        frame(encode(Pong(1))),
        frame(encode(Welcome(77, "future", (), 1 << 24, 10_000))),
        frame(encode(Failure(0, 16, {"versions": "2"}))),
    ],
    ids=["http", "not MessagePack", "no id", "unknown type", "answer before welcome", "other version", "refusal"],
)
def test_a_peer_that_does_not_speak_the_protocol_is_refused_at_once(ask: Ask, greeting: bytes) -> None:
    with RawPeer(greets_with(greeting)) as peer, pytest.raises(VersionMismatch):
        ask(peer.address, 30)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x20\x94\x03",
        frame(encode(Pong(4_000_000))),
        frame(encode(Values(1, (1, 1), (None, None), FINGERPRINT))),
        frame(msgpack.packb([3, 1, [1], ["text"]])),
        frame(msgpack.packb([1, 0, 1, "again", [], 1 << 24, 10])),
        WELCOME,
        b"",
    ],
    ids=[
        "oversized",
        "not MessagePack",
        "truncated",
        "unknown id",
        "answer of another kind",
        "bad content",
        "second welcome",
        "same welcome",
        "closes",
    ],
)
def test_a_peer_that_breaks_the_protocol_is_unavailable_by_the_deadline(ask: Ask, garbage: bytes) -> None:
    with RawPeer(greets_with(WELCOME, garbage)) as peer, pytest.raises(Unavailable):
        ask(peer.address, 1.0)


@pytest.mark.parametrize("data", [(), (WELCOME,)], ids=["before the welcome", "after it"])
def test_a_silent_peer_is_deadline_exceeded(ask: Ask, data: tuple[bytes, ...]) -> None:
    with RawPeer(greets_with(*data, then_close=False)) as peer, pytest.raises(DeadlineExceeded):
        ask(peer.address, 0.3)


def test_a_peer_that_closes_without_an_answer_is_unavailable(ask: Ask) -> None:
    with RawPeer(lambda sock: None) as peer, pytest.raises(Unavailable):
        ask(peer.address, 1.0)


def test_answers_that_come_one_byte_at_a_time_are_read(ask: Ask) -> None:
    honest = Peer()

    def behave(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = ServerConnection()
        while data := sock.recv(65536):
            for event in wire.receive(data):
                replies = [] if hasattr(event, "reply") else [wire.send(reply) for reply in honest.honest(event)]  # type: ignore[arg-type]
                for byte in b"".join([getattr(event, "reply", b""), *replies]):
                    sock.sendall(bytes([byte]))

    with honest, RawPeer(behave) as peer:
        assert ask(peer.address, 30).value() == "JFK"


def test_wrong_owners_in_a_location_are_a_typed_error() -> None:
    with Peer() as dead:
        gone = dead.address
    with Peer() as peer:
        peer.script = lambda request: (
            peer.honest(request)
            if isinstance(request, Get)
            else [Location(request.id, dict(peer.location(request).state), 128, ((0, 128, *gone, bytes(16)),))]
        )
        with QueryableStateClient(*peer.address, direct=True) as client, pytest.raises(QueryError):
            client.get("job", "state", "JFK", timeout_s=0.3)
