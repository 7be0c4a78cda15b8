"""A poller for several threads: the kernel reports each readable socket to one of them.

Rules of this module: it wraps the kernel's edge-triggered interest (epoll on Linux, kqueue elsewhere), which
`selectors` does not offer, and knows nothing of the bytes.

The kernel reports arrived bytes once, to one waiting thread that it picks. So no thread has to wake another, and a
socket needs no new registration. A thread that leaves bytes unread arms the socket, so the kernel reports it again.
"""

from __future__ import annotations

import select
import socket
import sys

__all__ = ["EdgePoller"]

#: One socket per wait: a thread may be busy with it for long, so another thread takes the next one.
MAX_EVENTS = 1


class EdgePoller:
    """Any thread may call any method. `stop` ends all waits for good; call `close` after it."""

    def __init__(self) -> None:
        self._kernel = _Kernel()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._kernel.watch_always(self._stop_reader.fileno())

    def arm(self, fd: int) -> None:
        """Watch `fd`. If it is watched already and has input, report it to a waiting thread again."""
        self._kernel.arm(fd)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`. A thread that got it from `wait` before may still read it. Unknown ones are ignored."""
        self._kernel.remove(fd)

    def wait(self) -> list[tuple[int, bool]]:
        """Wait for sockets with input. Returns each with whether its input has ended: the peer has closed, or the
        connection is broken. After `stop` it returns at once."""
        return self._kernel.wait()

    def stop(self) -> None:
        """End the waits of all threads, now and from now on: no thread reads the byte."""
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
