"""A server with one defect: a proxy before a sound server, which passes everything on and spoils one thing.

Rules of this module: it moves bytes and cuts frames; what is spoiled is a `Spoiler`'s. It sits in front of the owners,
too: a Location that passes names the meddler's own ports.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgpack

from qstate_conformance.server.fixture import LIMITS

__all__ = ["Link", "Meddler", "Spoiler", "frame", "pack", "unpack"]

HANDSHAKE_MAX_FRAME = 65_536
PATIENCE_S = 10.0
LOCATION = 5


def pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(payload: bytes) -> Any:
    """The value of a payload; None for what cannot be read."""
    try:
        return msgpack.unpackb(payload, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return None


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Spoiler:
    """Passes everything on unchanged. One for each connection; a subclass spoils one thing.

    `fields` are those of a sound message. What a method gives is passed on in place of what it was given.
    """

    #: Whether the state servers are spoiled, or the proxy.
    at_owners = False
    #: Whether the defect shows on whole requests, so that bytes from the client are cut into frames first.
    reads_requests = False
    #: Whether it stops reading from the server while its client takes nothing.
    waits_for_clients = True

    def __init__(self, link: Link) -> None:
        self.link = link

    def opened(self) -> bool:
        """A client connected. False: it is turned away without a word."""
        return True

    def bytes_from_client(self, data: bytes) -> bytes:
        return data

    def bytes_without_frame(self, data: bytes) -> bytes:
        """What the client sends from the first frame on that is over the limit."""
        return data

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]

    def client_ended(self) -> bool:
        """The client has ended its half of the connection. Returns whether to pass that on to the server."""
        return True

    def server_ended(self) -> list[bytes]:
        """The server sends nothing more. Gives what has been held back."""
        return []


class Cutter:
    """Cuts bytes into payloads up to a limit, and returns longer ones unchanged."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._data = b""
        self.over = False

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        found = []
        while not self.over and len(self._data) >= 4:
            length = int.from_bytes(self._data[:4], "big")
            if length > self.limit:
                self.over = True
            elif len(self._data) < 4 + length:
                break
            else:
                found.append(self._data[4 : 4 + length])
                self._data = self._data[4 + length :]
        return found

    def rest(self) -> bytes:
        rest, self._data = self._data, b""
        return rest


class Link:
    """One client's connection and its own to the server."""

    def __init__(self, meddler: Meddler, spoiler: type[Spoiler], client: asyncio.StreamWriter) -> None:
        self.meddler = meddler
        self.spoiler = spoiler(self)
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self._requests = Cutter(HANDSHAKE_MAX_FRAME)
        self._answers = Cutter(1 << 32)

    def to_client(self, payload: bytes) -> None:
        self.client.write(frame(payload))

    def close(self) -> None:
        """End the connection, both ways."""
        self.client.close()
        if self.server is not None:
            self.server.close()

    def abort(self) -> None:
        """`close` without waiting for what the other sides have not taken."""
        for side in (self.client, self.server):
            # asyncio fails to abort a transport that has closed by itself; one with nothing to send does so soon.
            if side is not None and (not side.transport.is_closing() or side.transport.get_write_buffer_size()):
                side.transport.abort()

    def from_client(self, data: bytes) -> None:
        data = self.spoiler.bytes_from_client(data)
        if not self.spoiler.reads_requests:
            self._to_server(data)
            return
        for payload in self._requests.feed(data):
            for passed in self._spoiled(self.spoiler.from_client, payload):
                self._to_server(frame(passed))
        if self._requests.over:
            self._to_server(self.spoiler.bytes_without_frame(self._requests.rest()))

    def client_ended(self) -> None:
        if self.spoiler.client_ended() and self.server is not None:
            with suppress(OSError):
                self.server.write(self._requests.rest())
                self.server.write_eof()

    def server_ended(self) -> None:
        for payload in self.spoiler.server_ended():
            self.to_client(payload)

    def from_server(self, data: bytes) -> None:
        for payload in self._answers.feed(data):
            fields = unpack(payload)
            if fields[0] == 1:
                self._requests.limit = LIMITS.max_frame
            if fields[0] == LOCATION:
                payload = self.meddler.moved(fields)
            for passed in self._spoiled(self.spoiler.from_server, payload):
                self.to_client(passed)

    def _to_server(self, data: bytes) -> None:
        if self.server is not None and data:
            self.server.write(data)

    def _spoiled(self, spoil: Callable[[Sequence[Any], bytes], list[bytes]], payload: bytes) -> list[bytes]:
        fields = unpack(payload)
        sound = isinstance(fields, tuple) and len(fields) >= 2 and all(type(item) is int for item in fields[:2])
        return spoil(fields, payload) if sound else [payload]


class Meddler:
    """Listens for a proxy and for each of its owners. Clients connect to `address`."""

    def __init__(self, server: tuple[str, int], spoiler: type[Spoiler]) -> None:
        self.links: set[Link] = set()
        #: What the spoilers of all connections share.
        self.shared: dict[str, Any] = {}
        self._spoiler = spoiler
        self._server = server
        self._listeners: dict[tuple[str, int], asyncio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meddler")
        self._tasks: set[asyncio.Task[None]] = set()
        #: Connections that end, perhaps as soon as the other side has taken what waits for it.
        self._ended: list[Link] = []

    def __enter__(self) -> Meddler:
        self._thread.start()
        self.address = self._run(self._listen(self._server, owner=False))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def close_listeners(self) -> None:
        """Accept no connection any more."""
        for listener in self._listeners.values():
            listener.close()

    def moved(self, fields: Sequence[Any]) -> bytes:
        """A Location whose owners are reached through this meddler."""
        owners = []
        for start, stop, host, port, state_id in fields[4]:
            address = self.shared.setdefault("ports", {}).get((host, port), (host, port))
            owners.append((start, stop, *address, state_id))
            self.shared.setdefault("ids", set()).add(state_id)
        return pack((*fields[:4], owners))

    def _run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(PATIENCE_S)

    async def front(self, owners: Sequence[tuple[str, int]]) -> None:
        """Stand in front of these state servers, too."""
        for owner in owners:
            self.shared.setdefault("ports", {})[owner] = await self._listen(owner, owner=True)

    def stand_before(self, owners: Sequence[tuple[str, int]]) -> Meddler:
        self._run(self.front(owners))
        return self

    async def _listen(self, server: tuple[str, int], *, owner: bool) -> tuple[str, int]:
        spoiler = self._spoiler if owner == self._spoiler.at_owners else Spoiler

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = Link(self, spoiler, writer)
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            self.links.add(link)
            try:
                if link.spoiler.opened():
                    await self._carry(link, reader, server)
            except (OSError, asyncio.CancelledError):
                pass
            finally:
                self.links.discard(link)
                self._tasks.discard(task)
                link.close()
                self._ended.append(link)

        listener = await asyncio.start_server(accepted, "127.0.0.1", 0, backlog=1024)
        self._listeners[server] = listener
        host, port = listener.sockets[0].getsockname()[:2]
        return host, port

    async def _carry(self, link: Link, reader: asyncio.StreamReader, server: tuple[str, int]) -> None:
        from_server, link.server = await asyncio.open_connection(*server)
        sending = asyncio.ensure_future(_pump(reader, link.from_client, link.server))
        client = link.client if link.spoiler.waits_for_clients else None
        receiving = asyncio.ensure_future(_pump(from_server, link.from_server, client))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not receiving.done() and sending.exception() is None:
                link.client_ended()
                await receiving
            if receiving.done() and receiving.exception() is None:
                link.server_ended()
                await link.client.drain()
        finally:
            for pump in (sending, receiving):
                pump.cancel()
                with suppress(OSError, asyncio.CancelledError):
                    await pump

    async def _end(self) -> None:
        self.close_listeners()
        for link in list(self.links):
            link.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE_S)
        for link in self._ended:
            link.abort()
        # A transport that was closed frees its socket in a later turn of the loop.
        for _ in range(2):
            await asyncio.sleep(0)


async def _pump(
    reader: asyncio.StreamReader, deliver: Callable[[bytes], None], receiver: asyncio.StreamWriter | None
) -> None:
    while data := await reader.read(65_536):
        deliver(data)
        if receiver is not None:
            await receiver.drain()
