"""Both clients against peers that do not greet them: a typed error, at once.

The conformance suite has the laws of peers that break the protocol later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import Unavailable, VersionMismatch
from qstate.protocol.codec import encode, frame
from qstate.protocol.messages import Failure, Pong, Welcome
from tests.runtime.client.peer import RawPeer

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


def greets_with(data: bytes) -> Callable[[socket.socket], None]:
    """Read the hello, send `data` and close."""

    def behave(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(data)

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


def test_a_peer_that_closes_without_an_answer_is_unavailable(ask: Ask) -> None:
    with RawPeer(lambda sock: None) as peer, pytest.raises(Unavailable):
        ask(peer.address, 1.0)
