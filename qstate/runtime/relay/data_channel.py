"""The data plane between a relay and a task manager: one connection per task, frames of Arrow bytes.

Rules of this module: it frames bytes and knows the order in which frames may come, not what rows mean. The frames
travel over connections of `secure_socket`: both ends have authenticated each other before the first one.

    frame = length of payload (u64, big-endian) | kind (u8) | payload

    relay -> task manager    OPEN (pickled SessionRequest), SCHEMA (Arrow), BATCH (Arrow) ...,
                             END (number and digest of the rows, see `qstate.runtime.relay.input_digest`)
    task manager -> relay    OUTPUT (Arrow) ..., then SEALED, or FAILED (pickled error) at any time

Outputs flow while inputs still come: neither end waits for the other's end of stream. FAILED may come before the input
was read. The task manager then reads and discards the input until the relay has closed, because closing a socket with
unread input can destroy the data that was sent last.
"""

from __future__ import annotations

import os
import pickle
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

from qstate.errors import FencedError, QStateError
from qstate.host.forks import end_forked_child
from qstate.runtime.control.addresses import TaskManagerAddress
from qstate.runtime.control.secure_socket import SecureSocket, open_secure

__all__ = [
    "Frame",
    "FrameKind",
    "RelayChannel",
    "SessionChannel",
    "SessionRequest",
    "TaskChannel",
    "channel_name",
    "open_channel",
]

_HEADER = Struct(">QB")
CONNECT_TIMEOUT_S = 5.0
RECEIVE_BYTES = 1 << 20
#: How long a task manager keeps a socket open for a relay that does not read the end of its session.
LINGER_S = 30.0
#: After this time without a byte in either direction, a relay asks whether its task manager is still current.
SILENCE_S = 5.0


class FrameKind(IntEnum):
    """The kinds of frames; the table at the top of the module says which end sends them when."""

    OPEN = 1
    SCHEMA = 2
    BATCH = 3
    END = 4
    OUTPUT = 5
    SEALED = 6
    FAILED = 7


@dataclass(frozen=True, slots=True)
class Frame:
    kind: FrameKind
    payload: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A relay's request to a subtask: process the rows of this epoch, as this attempt of this query.

    `declaration` is the token of the operator's declaration that the query was built from.
    `attempt` orders the attempts of one epoch: Spark's task attempt id (unique and rising during a driver's life) in
    the high bits, the relay's own count of reconnections in the low ones.
    """

    operator: str
    subtask: int
    epoch: int
    attempt: int
    query: str
    declaration: str


class SessionChannel(Protocol):
    """What the processing of a session needs of its channel."""

    def receive(self) -> Frame:
        """The next frame. Raises `ConnectionError` when there will be none."""

    def quiet(self) -> bool:
        """Whether no data has arrived, so that `receive` would wait."""

    def send(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        """Send a frame. Raises `OSError`."""


class TaskChannel:
    """The task manager's end: blocking, for one thread except `cut` and `fail`, and not for forked children."""

    def __init__(self, connection: SecureSocket) -> None:
        self._pid = os.getpid()
        self._connection = connection
        self._sock = connection.socket
        self._sending = threading.Lock()
        self._failed = False
        self._arrived = select.poll()
        self._arrived.register(self._sock, select.POLLIN)

    def receive(self) -> Frame:
        """The next frame. Raises `ConnectionError` when the relay is gone or `cut` was called."""
        end_forked_child(self._pid)
        size, kind = _HEADER.unpack(self._connection.receive_exactly(_HEADER.size))
        return Frame(FrameKind(kind), self._connection.receive_exactly(size))

    def quiet(self) -> bool:
        """Whether no data has arrived, so that `receive` would wait."""
        return not self._connection.records.has_unread() and not self._arrived.poll(0)

    def send(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        end_forked_child(self._pid)
        with self._sending:
            if self._failed:
                raise ConnectionError("the session has failed")
            self._connection.sendall(_HEADER.pack(len(payload), kind), payload)

    def send_failure(self, error: QStateError) -> None:
        self.send(FrameKind.FAILED, pickle.dumps(error))

    def fail(self, error: QStateError) -> None:
        """End the session with this error when its own thread hangs. Any thread may call it, as its last call.

        Returns when the relay has read the error, or after `LINGER_S`. The session's thread gets `ConnectionError` if
        it ever continues.
        """
        self.send_failure(error)
        self._failed = True
        self.close()

    def cut(self) -> None:
        """Make every present and later receive and send fail. Any thread may call it."""
        with suppress(OSError):  # the relay closed first, which has the same effect
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close when the relay has read all data, or after `LINGER_S`."""
        end_forked_child(self._pid)  # a forked child would end its parent's session
        deadline = time.monotonic() + LINGER_S
        rest = bytearray(RECEIVE_BYTES)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while (left_s := deadline - time.monotonic()) > 0:
                self._sock.settimeout(left_s)
                if not self._sock.recv_into(rest):
                    break
        self._sock.close()


class RelayChannel:
    """The relay's end: one thread, sends and receives at the same time, so that neither side can block the other.

    `silent` is called after each `SILENCE_S` without data; it raises `ConnectionError` when waiting is useless.
    Every failure of the connection raises `ConnectionError`, after the last frame was returned.
    """

    def __init__(self, connection: SecureSocket, silent: Callable[[], None]) -> None:
        self._pid = os.getpid()
        self._records = connection.records
        self._sock = connection.socket
        self._sock.setblocking(False)
        self._silent = silent
        self._received = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sock, selectors.EVENT_READ)

    def exchange(self, kind: FrameKind, payload: Any = b"") -> Iterator[Frame]:
        """Send a frame; yields the frames that arrive meanwhile. Exhaust the iterator: only then the frame is sent."""
        end_forked_child(self._pid)
        body = memoryview(payload).cast("B")
        records = self._records.encrypted(_HEADER.pack(len(body), kind), body)
        pending = memoryview(next(records))
        self._selector.modify(self._sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        try:
            while pending:
                mask = self._wait()
                if mask & selectors.EVENT_READ:
                    yield from self._read()
                if mask & selectors.EVENT_WRITE:
                    try:
                        pending = pending[self._write(pending) :] or memoryview(next(records, b""))
                    except OSError:
                        # The other end has closed. Read the frames that it sent before, such as its error.
                        while True:
                            yield from self.await_frames()
        finally:
            self._selector.modify(self._sock, selectors.EVENT_READ)

    def await_frames(self) -> list[Frame]:
        """Wait for data; returns the frames that are complete, perhaps none."""
        return self._read() if self._wait() else []

    def close(self) -> None:
        self._selector.close()
        self._sock.close()

    def _wait(self) -> int:
        ready = self._selector.select(SILENCE_S)
        if not ready:
            self._silent()
        return ready[0][1] if ready else 0

    def _write(self, data: memoryview) -> int:
        """Send without blocking; returns the number of bytes sent. Raises `OSError` when the other end has closed."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def _read(self) -> list[Frame]:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as exc:
            raise ConnectionError(f"the connection to the task manager broke: {exc}") from exc
        if not data:
            raise ConnectionError("the task manager closed the connection")
        self._records.feed(data)
        self._received += self._records.read()
        frames = []
        offset = 0
        while len(self._received) - offset >= _HEADER.size:
            size, kind = _HEADER.unpack_from(self._received, offset)
            end = offset + _HEADER.size + size
            if len(self._received) < end:
                break
            frames.append(Frame(FrameKind(kind), bytes(memoryview(self._received)[offset + _HEADER.size : end])))
            offset = end
        if offset:
            del self._received[:offset]
        return frames


def channel_name(index: int, incarnation: int) -> str:
    """The name of a task manager's data channel: a connection reaches this process, or none."""
    return f"qstate data {index}.{incarnation}"


def open_channel(
    manager: TaskManagerAddress, secret: bytes, *, same_host: bool, silent: Callable[[], None]
) -> RelayChannel:
    """A channel to a task manager: over its Unix socket on the same host, over TCP elsewhere.

    `silent` is that of `RelayChannel`. Raises `ConnectionError` when the task manager cannot be reached or does not
    authenticate.
    """
    try:
        if same_host and manager.unix_path and Path(manager.unix_path).exists():
            sock = _unix_socket(manager.unix_path)
        else:
            sock = socket.create_connection((manager.host, manager.data_port), timeout=CONNECT_TIMEOUT_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as exc:
        raise ConnectionError(f"task manager {manager.index} (process {manager.pid}) cannot be reached: {exc}") from exc
    try:
        connection = open_secure(sock, secret, channel_name(manager.index, manager.incarnation))
    except (OSError, FencedError) as exc:
        sock.close()
        raise ConnectionError(f"task manager {manager.index} did not authenticate: {exc}") from exc
    return RelayChannel(connection, silent)


def _unix_socket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
