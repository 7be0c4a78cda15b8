"""The threads of a state server: each reads requests and, if it may, executes what it read.

Rules of this module: it decides which thread does what. It knows sockets only as something to read, and
nothing of requests.

Handing a request from a network thread to a query thread puts a wake-up on the request's path; passing the
selector on to a waiting thread instead (leader and followers) wakes one as well, and it then competes for the
GIL with the request. So nobody is woken here: all threads wait in the same poller, the kernel gives each
readable connection to one of them, and that thread reads, executes and answers. One get in flight, echo of the
same work, two cores, p50 over loopback:

    one thread does everything         21 us     (a slow state access would stop the network)
    this                               22 us
    network thread -> query thread     32 us
    leader passes the selector on      43 us

What the split into network and query threads is for still holds. Of N + Q threads at most Q execute, so N are
always left to read: no state access, however long, keeps the network waiting. What is read while all Q execute
waits in a queue, where the first of them to be done takes all of it: nobody who reads waits for a thread. A request
that comes alone to a thread that may execute does not even see the queue.
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

from qstate.line_limit import limited
from qstate.runtime.net.edge_poller import EdgePoller

__all__ = ["Readable", "ReadingPool"]

log = limited(logging.getLogger(__name__))


class Readable(Protocol):
    """A connection that the pool reads."""

    def read_ready(self, ended: bool) -> None:
        """Read what has arrived, the end of it included when it has `ended`. Must not block or raise.

        Who leaves something unread calls `arm` when it is to be read. May be called by two threads at once, and for no
        reason: a descriptor may have been given out anew.
        """

    def read_on(self) -> None:
        """Deliver what was read and kept back, and go on reading. The same rules."""


class ReadingPool:
    """`readers` + `workers` daemon threads, of which at most `workers` execute at a time.

    `pending` tells whether there is work; `execute` does work until there is none, and may be run by several
    threads at once. Both are called without locks held.
    """

    def __init__(
        self, readers: int, workers: int, name: str, *, pending: Callable[[], object], execute: Callable[[], None]
    ) -> None:
        self._pending = pending
        self._execute = execute
        self._poller = EdgePoller()
        self._recalls = _Recalls()
        self._connections: dict[int, Readable] = {}
        # Popping and appending are atomic; a semaphore would cost several times as much.
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
        """Call `read_ready` of the connection once more if there is something left to read. Any thread."""
        self._poller.arm(fd)

    def recall(self, connection: Readable) -> None:
        """Have a thread of the pool call `read_on` of a connection. Any thread."""
        self._recalls.add(connection)

    def remove(self, fd: int) -> None:
        """Read the connection no more; the caller closes `fd` afterwards. Any thread, once."""
        del self._connections[fd]
        self._poller.remove(fd)

    def stop(self, timeout_s: float) -> bool:
        """Wait for the threads; False when one is still executing. Every connection was removed before. Once."""
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
            for fd, ended in poller.wait():
                connection = connections.get(fd)
                if connection is not None:
                    connection.read_ready(ended)
            if self._pending() and self.take_permit():
                self._work()
        # The last one out closes: `stop` does not wait for a thread that executes for ever.
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            self._close()

    def _close(self) -> None:
        self._recalls.close()
        self._poller.close()

    def take_permit(self) -> bool:
        """Whether the calling thread, one of the pool, may execute now. If so it calls `give_permit` afterwards."""
        try:
            self._permits.pop()
        except IndexError:
            return False
        return True

    def give_permit(self) -> None:
        """The calling thread executes no more; what came in meanwhile is done when it returns from `read_ready`."""
        self._permits.append(None)

    def _work(self) -> None:
        # Work that came in after `execute` saw none, and before the permit was back, was left to this thread:
        # whoever read it found no permit. Hence the second look.
        while True:
            try:
                self._execute()
            except Exception:
                log.exception("work failed outside of any request")
            self.give_permit()
            if not self._pending() or not self.take_permit():
                return


class _Recalls:
    """Connections that wait for a thread of the pool although nothing arrives on them. They share one descriptor."""

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
            self._wake()  # the others are for other threads: this one may be busy for long
        connection.read_on()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:  # full: threads are being woken; closed: nothing is read any more
            return
