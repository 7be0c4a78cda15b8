"""The threads of a state server: each reads requests and, with a permit, executes them.

Rules of this module: it decides which thread reads and which executes. It knows nothing of requests.

If a network thread hands a request to a query thread, each request costs a wake-up. If the leader passes the selector
to a follower instead (leader and followers), the woken follower competes with the request for the GIL. So no thread
wakes another here: all threads wait in one poller, the kernel gives each readable connection to one of them, and this
thread reads, executes and answers. One get in flight, echo of the same work, two cores, p50 over loopback:

    one thread does everything         21 us     (a slow state access would stop the network)
    this                               22 us
    network thread -> query thread     32 us
    leader passes the selector on      43 us

Network and query threads still have separate limits. Of N + Q threads at most Q execute, so N always remain to read: no
state access, however long, stops the network. Requests that are read while Q threads execute wait in a queue, which the
first free thread takes whole. A request that arrives alone at a thread with a permit bypasses the queue.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from qstate.host.line_limit import limited
from qstate.runtime.net.edge_poller import EdgePoller

__all__ = ["Readable", "ReadingPool"]

log = limited(logging.getLogger(__name__))


class Readable(Protocol):
    """A connection that the pool reads."""

    def read_ready(self, ended: bool) -> None:
        """Read what has arrived; when it has `ended`, also the end of the input. Must not block or raise.

        A connection that leaves input unread calls `arm` later. Two threads may call it at once. It may also be called
        without input, because a descriptor's number can be reused.
        """

    def read_on(self) -> None:
        """Deliver the input that was kept back, then continue to read. The same rules."""


class ReadingPool:
    """`readers` + `workers` daemon threads, of which at most `workers` execute at a time.

    `pending` says whether there is work. `execute` does work until there is none; several threads may run it at once.
    The pool holds no lock when it calls them.
    """

    def __init__(
        self, readers: int, workers: int, name: str, *, pending: Callable[[], object], execute: Callable[[], None]
    ) -> None:
        self._pending = pending
        self._execute = execute
        self._poller = EdgePoller()
        self._recalls = _Recalls()
        self._connections: dict[int, Readable] = {}
        # Popping and appending are atomic. A semaphore would cost several times as much.
        self._permits = deque([None] * workers)
        self._stopped = False
        self._lock = threading.Lock()
        self._running = 0
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{index}", daemon=True)
            for index in range(readers + workers)
        ]

    def start(self) -> None:
        """Start the threads."""
        self.add(self._recalls.fileno(), self._recalls)
        self._running = len(self._threads)
        for thread in self._threads:
            thread.start()

    def add(self, fd: int, connection: Readable) -> None:
        """Read a connection from now on. Any thread."""
        self._connections[fd] = connection
        self._poller.arm(fd)

    def arm(self, fd: int) -> None:
        """Call `read_ready` of the connection again if it has unread input. Any thread."""
        self._poller.arm(fd)

    def recall(self, connection: Readable) -> None:
        """Make a thread of the pool call `read_on` of a connection. Any thread."""
        self._recalls.add(connection)

    def remove(self, fd: int) -> None:
        """Stop reading the connection. The caller closes `fd` afterwards. Any thread, once."""
        del self._connections[fd]
        self._poller.remove(fd)

    def stop(self, timeout_s: float) -> bool:
        """End the threads. False: one still executes after the timeout. Remove every connection before. Once."""
        self._stopped = True
        self._poller.stop()
        if not self._running:
            self._close()
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        connections, poller = self._connections, self._poller
        while not self._stopped:
            fd, ended = poller.wait()
            connection = connections.get(fd)
            if connection is not None:
                connection.read_ready(ended)
            if self._pending() and self.take_permit():
                self._work()
        # The last thread closes the poller, because `stop` does not wait for a thread that executes forever.
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self._close()

    def _close(self) -> None:
        self._recalls.close()
        self._poller.close()

    def take_permit(self) -> bool:
        """Whether the calling thread of the pool may execute now. If so it calls `give_permit` afterwards."""
        try:
            self._permits.pop()
        except IndexError:
            return False
        return True

    def give_permit(self) -> None:
        """Return the permit. The thread executes requests that came in meanwhile when it returns from `read_ready`."""
        self._permits.append(None)

    def _work(self) -> None:
        # Another thread may have read a request after `execute` found none and before this permit was back. That
        # thread found no permit, so this one looks again.
        while True:
            try:
                self._execute()
            except Exception:
                log.exception("work failed outside of any request")
            self.give_permit()
            if not self._pending() or not self.take_permit():
                return


class _Recalls:
    """Connections to continue without new input. They share one descriptor, which wakes a thread of the pool."""

    def __init__(self) -> None:
        self._waiting: deque[Readable] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def add(self, connection: Readable) -> None:
        self._waiting.append(connection)
        self._wake()

    def read_ready(self, ended: bool) -> None:
        with suppress(OSError):  # another thread took the bytes, or the pool has stopped
            self._reader.recv(4096)
        self.read_on()

    def read_on(self) -> None:
        try:
            connection = self._waiting.popleft()
        except IndexError:
            return
        if self._waiting:
            self._wake()  # other threads take the others: this one may be busy for long
        connection.read_on()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:  # full: threads are being woken; closed: the pool has stopped
            return
