"""Waiting for readable sockets by several threads at once, each readiness told to one of them.

Rules of this module: it wraps the kernel's edge-triggered interest (epoll on Linux, kqueue elsewhere) and knows
nothing of what is read. `selectors` does not offer that.

Bytes that arrive are told once, to one waiting thread. The kernel picks the thread, so no thread of ours has to wake
another, and nothing has to be asked for again: whoever reads less than there is arms the socket to be told of the rest.
"""

from __future__ import annotations

import select
import socket
import sys

__all__ = ["EdgePoller"]

#: One at a time: who is told of a socket may be busy with it for long, and the next one is for another thread.
MAX_EVENTS = 1


class EdgePoller:
    """Every method may be called from any thread. `stop` ends all waits for good; `close` follows it."""

    def __init__(self) -> None:
        self._kernel = _Kernel()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._kernel.watch_always(self._stop_reader.fileno())

    def arm(self, fd: int) -> None:
        """Watch `fd`; if it is watched, tell some waiting thread of it once more if there is something to read."""
        self._kernel.arm(fd)

    def remove(self, fd: int) -> None:
        """Forget `fd`, if it is known. A thread that was told of it before may still be about to read it."""
        self._kernel.remove(fd)

    def wait(self) -> list[tuple[int, bool]]:
        """Wait for sockets with something to read, and whether it is the last: the peer has closed, or the connection
        is broken. After `stop` it returns at once."""
        return self._kernel.wait()

    def stop(self) -> None:
        """End the waits of all threads, now and from now on: the byte is never read."""
        self._stop_writer.send(b"\0")

    def close(self) -> None:
        """Free the descriptors, once no thread waits any more. Idempotent."""
        self._stop_reader.close()
        self._stop_writer.close()
        self._kernel.close()


if sys.platform == "linux":
    _ARRIVED = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET

    class _Kernel:
        def __init__(self) -> None:
            self._epoll = select.epoll()

        def watch_always(self, fd: int) -> None:
            self._epoll.register(fd, select.EPOLLIN)

        def arm(self, fd: int) -> None:
            try:
                self._epoll.modify(fd, _ARRIVED)
            except FileNotFoundError:
                self._epoll.register(fd, _ARRIVED)

        def remove(self, fd: int) -> None:
            try:
                self._epoll.unregister(fd)
            except FileNotFoundError:
                return

        def wait(self) -> list[tuple[int, bool]]:
            return [(fd, events != select.EPOLLIN) for fd, events in self._epoll.poll(None, MAX_EVENTS)]

        def close(self) -> None:
            self._epoll.close()

else:

    class _Kernel:
        def __init__(self) -> None:
            self._kqueue = select.kqueue()

        def watch_always(self, fd: int) -> None:
            self._change(fd, select.KQ_EV_ADD)

        def arm(self, fd: int) -> None:
            self._change(fd, select.KQ_EV_ADD | select.KQ_EV_CLEAR)

        def remove(self, fd: int) -> None:
            try:
                self._change(fd, select.KQ_EV_DELETE)
            except FileNotFoundError:
                return

        def wait(self) -> list[tuple[int, bool]]:
            events = self._kqueue.control(None, MAX_EVENTS, None)
            return [(event.ident, bool(event.flags & select.KQ_EV_EOF)) for event in events]

        def close(self) -> None:
            self._kqueue.close()

        def _change(self, fd: int, flags: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)
