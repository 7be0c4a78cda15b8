"""One HTTP/1.1 connection that costs its process as little as possible, so that the server is what is measured.

Rules of this module: bytes and futures. It understands what `qstate gateway` answers, and no other server: a length in
the head for answers, chunks for streams.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["HttpConnection", "StreamConnection"]

_LENGTH = b"content-length: "


class HttpConnection(asyncio.Protocol):
    """A connection on which one request follows the other."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._data = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, address: tuple[str, int]) -> HttpConnection:
        """Connect."""
        _, made = await asyncio.get_running_loop().create_connection(cls, *address)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def body(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._answer.set_exception(RuntimeError(head.decode()))
            return
        at = head.index(_LENGTH) + len(_LENGTH)
        if len(body) >= int(head[at:].partition(b"\r\n")[0]):
            self._data = b""
            self._answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the gateway closed the connection"))

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


class StreamConnection(asyncio.Protocol):
    """A stream of server-sent events: it counts those that have this name."""

    def __init__(self, name: bytes, arrived: asyncio.Queue[None]) -> None:
        self._name = name
        self._arrived = arrived
        self._rest = b""
        self._transport: Any = None

    @classmethod
    async def to(
        cls, address: tuple[str, int], request: bytes, name: bytes, arrived: asyncio.Queue[None]
    ) -> StreamConnection:
        """Connect and ask; `arrived` gets one item for each event of the name."""
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(name, arrived), *address)
        made._transport.write(request)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        for _ in range(data.count(self._name)):
            self._arrived.put_nowait(None)
        # A name may be cut in two.
        end = data.rfind(self._name)
        self._rest = data[max(end + len(self._name) if end >= 0 else 0, len(data) - len(self._name) + 1) :]

    def follow(self, name: bytes, arrived: asyncio.Queue[None]) -> None:
        """Count events of another name from now on."""
        self._name, self._arrived = name, arrived

    def close(self) -> None:
        """End the stream."""
        self._transport.close()
