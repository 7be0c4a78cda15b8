"""The connections of the synchronous client, driven by the threads that wait for answers.

Rules of this module: sockets and locks, no messages. The client starts no thread. One of the waiting threads leads: it
polls all sockets and hands every answer to its operation. When the leader's own operation has finished, another waiting
thread becomes the leader. A thread may stop waiting without an effect on the others.

One lock guards everything. The leader releases it only while it polls; sends and receives never block, so no thread
holds the lock for long.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
import weakref
from random import Random
from typing import Any

from qstate.errors import ClosedError
from qstate.runtime.client.operations import Links, Operation
from qstate.runtime.client.state_cache import Endpoints
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, PipelinedConnection

__all__ = ["SyncLinks"]

# Beyond 128 KiB the C library maps and unmaps memory for each buffer.
RECEIVE_BYTES = 64 * 1024
#: With more unsent bytes than this on a link, a thread that starts another operation first helps to send them.
HIGH_WATER_BYTES = 1024 * 1024
#: How often such a thread checks whether the leader has sent them.
RELIEF_S = 0.01
#: The kernel counts milliseconds in 31 bits, so a poll ends after a day and begins again.
LONGEST_WAIT_S = 86_400.0
_CONNECTING = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}
_READ, _WRITE = select.POLLIN, select.POLLOUT
#: The events after which to read: bytes, their end, or an error, which the read raises.
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR


class SyncLink(PipelinedConnection):
    """A link over a non-blocking socket that the leader polls."""

    def __init__(self, links: SyncLinks, host: str, port: int, settings: ConnectionSettings) -> None:
        super().__init__(host, port, settings, links.endpoints, time.monotonic())
        self._links = links
        self._addresses: list[tuple[Any, ...]] = []
        self._sock: socket.socket | None = None
        #: The one of the addresses that the socket connects to.
        self._address: tuple[Any, ...] | None = None
        self._connected = False
        self._unsent = bytearray()
        # A poll of this socket alone takes 0.7 us, a read without data 3.
        self._arrivals = select.poll()

    def _connect(self) -> None:
        # Resolving a host name may block. A request waits for it, but nothing else does.
        flags = 0 if self._queued else socket.AI_NUMERICHOST
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=flags)
        except (OSError, UnicodeError) as exc:
            self.refused(exc if isinstance(exc, OSError) else OSError(str(exc)), time.monotonic())
            return
        self._addresses = self._links.endpoints.addresses.ordered(self.host, found)
        self._next_address(OSError("no address"))

    def ready(self, events: int) -> None:
        """The socket has these poll events."""
        sock = self._sock
        if sock is None:
            return
        if not self._connected:
            self._finish_connect(sock)
            return
        if events & _WRITE:
            self._flush(sock)
        if not events & _READABLE or self._sock is None:
            return
        try:
            data = sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self.unreachable(str(exc), time.monotonic())
            return
        if data:
            self.received(data, time.monotonic())
        else:
            self.unreachable("the peer closed the connection", time.monotonic())

    def notice_end(self) -> None:
        if self.idle and self._arrivals.poll(0):
            self.ready(_READ)

    def abandon_socket(self) -> None:
        """Close this process's copy of the socket after a fork; the connection belongs to the parent."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _write(self, data: bytes) -> None:
        sock = self._sock
        if sock is None:
            return
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > HIGH_WATER_BYTES:
                self._links.congested.add(self)
            return
        try:
            sent = sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # A read gives the reason, after the messages that the peer may have sent before it closed.
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._links.watch(sock, _READ | _WRITE, self)

    def _abort(self) -> None:
        self._links.open.discard(self)
        self._links.congested.discard(self)
        if self._sock is not None:
            self._links.unwatch(self._sock)
            self._sock.close()
            self._sock = None
            self._links.endpoints.addresses.failed(self.host, self._address, time.monotonic())

    def _flush(self, sock: socket.socket) -> None:
        try:
            sent = sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self.unreachable(str(exc), time.monotonic())
            return
        del self._unsent[:sent]
        if len(self._unsent) <= HIGH_WATER_BYTES:
            self._links.congested.discard(self)
        if not self._unsent:
            self._links.watch(sock, _READ, self)

    def _next_address(self, reason: OSError) -> None:
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.pop(0)
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as exc:
                reason = exc
                continue
            sock.setblocking(False)
            self._address = address
            code = sock.connect_ex(address)
            if code in _CONNECTING:
                self._sock = sock
                self._links.watch(sock, _WRITE, self)
                return
            reason = OSError(code, os.strerror(code))
            sock.close()
        self.refused(reason, time.monotonic())

    def _finish_connect(self, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code and not _is_connected(sock):
            # The event belongs to an earlier socket with this file descriptor.
            return
        if code:
            self._abort()
            self._next_address(OSError(code, os.strerror(code)))
            return
        # A request is one small write, and the client waits for its answer: do not wait to fill a segment.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connected = True
        self._arrivals.register(sock, _READ)
        self._links.watch(sock, _READ, self)
        self.opened()


class SyncLinks(Links[SyncLink]):
    """All links of one synchronous client, and the threads that wait on them."""

    def __init__(
        self, endpoints: Endpoints, settings: ConnectionSettings, random: Random, tracing: Tracing | None = None
    ) -> None:
        super().__init__(endpoints, settings, random, tracing)
        self.lock = threading.Lock()
        #: The links with more than `HIGH_WATER_BYTES` unsent.
        self.congested: set[SyncLink] = set()
        #: The sleeping threads, in the order of their arrival; releasing a waiter, a lock, wakes its thread.
        self._waiters: dict[Any, None] = {}
        self._leading = False
        self._closed: str | None = None
        # Other threads may register sockets while the leader polls; they wake it through this socket pair.
        self._poll = select.poll()
        self._polled: dict[int, SyncLink] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._poll.register(self._wake_reader, _READ)
        _forkable.add(self)

    # For the client

    def start(self, operation: Operation) -> None:
        """Start the operation. Call with the lock. Raises `ClosedError`."""
        if self._closed is not None:
            raise ClosedError(self._closed)
        self._live.add(operation)
        operation.start()
        if self.congested:
            self._relieve(operation)

    def wait(self, operation: Operation, until: float) -> bool:
        """Wait until the operation is finished, or until `until`. Returns whether it is. Call with the lock."""
        try:
            while not operation.finished:
                now = time.monotonic()
                wake_at = operation.wake_at
                if now >= wake_at:
                    operation.on_time(now)
                    continue
                if now >= until:
                    return False
                timeout_s = (wake_at if wake_at < until else until) - now
                if self._leading:
                    self._sleep(operation, timeout_s)
                else:
                    self._lead(timeout_s)
            return True
        finally:
            if self._waiters:
                self._pass_the_lead()

    def look(self, operation: Operation) -> bool:
        """Poll the sockets without waiting; returns whether the operation is finished. Call with the lock."""
        if not operation.finished and not self._leading:
            self._lead(0.0)
            self._pass_the_lead()
        if not operation.finished and time.monotonic() >= operation.wake_at:
            operation.on_time(time.monotonic())
        return operation.finished

    @property
    def closed(self) -> bool:
        """Whether they were closed for good."""
        return self._closed is not None

    def close(self, reason: str = "the client is closed") -> None:
        """Close every connection; unfinished operations fail with `ClosedError`. Call with the lock."""
        if self._closed is not None:
            return
        self._closed = reason
        _forkable.discard(self)
        for operation in list(self._live):
            operation.fail(ClosedError(reason))
        for link in list(self.open):
            link.unreachable(reason, time.monotonic())
        self._links.clear()
        if self._leading:
            self._wake_leader()
        else:
            self._dispose()

    def _relieve(self, operation: Operation) -> None:
        """Bound the unsent bytes for a slow peer: send, or wait for the leader to send, until it has caught up."""
        try:
            while not operation.finished and self.congested:
                left = operation.deadline - time.monotonic()
                if left <= 0:
                    return
                if self._leading:
                    self._sleep(operation, min(left, RELIEF_S))
                else:
                    self._lead(left)
        finally:
            self._pass_the_lead()

    # For operations and links

    def _new_link(self, host: str, port: int) -> SyncLink:
        return SyncLink(self, host, port, self._settings)

    def on_finished(self, operation: Operation) -> None:
        """Wake the threads that wait for the operation."""
        self._live.discard(operation)
        if operation.waiters:
            self._wake(operation)

    def on_progress(self, operation: Operation) -> None:
        """Wake the threads that wait for the operation: its `wake_at` has changed."""
        if operation.waiters:
            self._wake(operation)

    def watch(self, sock: socket.socket, events: int, link: SyncLink) -> None:
        """Have the leader poll the socket for these events."""
        self._polled[sock.fileno()] = link
        self._poll.register(sock, events)
        if self._leading:
            self._wake_leader()

    def unwatch(self, sock: socket.socket) -> None:
        """Stop polling the socket. Call before closing it."""
        if self._polled.pop(sock.fileno(), None) is not None:
            self._poll.unregister(sock)

    # Leading and sleeping

    def _lead(self, timeout_s: float) -> None:
        """Poll the sockets, without the lock, and read those that are ready."""
        self._leading = True
        self.lock.release()
        ready: list[tuple[int, int]] = []
        try:
            ready = self._poll.poll(min(timeout_s, LONGEST_WAIT_S) * 1000)
        finally:
            self.lock.acquire()
            self._leading = False
            if self._closed is not None:
                self._dispose()
        if self._closed is not None:
            return
        for number, events in ready:
            link = self._polled.get(number)
            if link is not None:
                link.ready(events)
            elif number == self._wake_reader.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)

    def _sleep(self, operation: Operation, timeout_s: float) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters[waiter] = None
        operation.waiters.append(waiter)
        self.lock.release()
        try:
            waiter.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
        finally:
            self.lock.acquire()
            self._waiters.pop(waiter, None)
            operation.waiters.remove(waiter)

    def _wake(self, operation: Operation) -> None:
        for waiter in operation.waiters:
            if waiter in self._waiters:
                del self._waiters[waiter]
                waiter.release()

    def _pass_the_lead(self) -> None:
        if self._waiters and not self._leading:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            waiter.release()

    def _wake_leader(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_writer.send(b"\0")

    def _dispose(self) -> None:
        self._wake_reader.close()
        self._wake_writer.close()

    def forget_after_fork(self) -> None:
        """In a forked child: the connections belong to the parent. Close the copies; every later use raises."""
        self.lock = threading.Lock()
        self._closed = "the client was made before the fork; make a new one in the child process"
        self._live.clear()
        self._waiters.clear()
        for link in self.open:
            link.abandon_socket()
        self.open.clear()
        self._links.clear()
        self._dispose()


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


#: The open clients of this process, which a forked child must abandon.
_forkable: weakref.WeakSet[SyncLinks] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for links in list(_forkable):
        links.forget_after_fork()
    _forkable.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
