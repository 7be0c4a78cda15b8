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
_ONE = 1

if sys.platform == "linux":
    _ARRIVED = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET

    class _Kernel:
        def __init__(self, stop_fd: int) -> None:
            self._epoll = select.epoll()
            self._epoll.register(stop_fd, select.EPOLLIN)

        def arm(self, fd: int) -> None:
            try:
                self._epoll.modify(fd, _ARRIVED)
            except FileNotFoundError:
                try:
                    self._epoll.register(fd, _ARRIVED)
                except FileExistsError:  # a thread that has an event of a closed socket with this number armed it
                    self._epoll.modify(fd, _ARRIVED)

        def remove(self, fd: int) -> None:
            try:
                self._epoll.unregister(fd)
            except FileNotFoundError:
                return

        def wait(self) -> tuple[int, bool]:
            ((fd, events),) = self._epoll.poll(None, _ONE)
            return fd, events != select.EPOLLIN

        def close(self) -> None:
            self._epoll.close()

else:

    class _Kernel:
        def __init__(self, stop_fd: int) -> None:
            self._kqueue = select.kqueue()
            self._change(stop_fd, select.KQ_EV_ADD)

        def arm(self, fd: int) -> None:
            self._change(fd, select.KQ_EV_ADD | select.KQ_EV_CLEAR)

        def remove(self, fd: int) -> None:
            try:
                self._change(fd, select.KQ_EV_DELETE)
            except FileNotFoundError:
                return

        def wait(self) -> tuple[int, bool]:
            (event,) = self._kqueue.control(None, _ONE, None)
            return event.ident, bool(event.flags & select.KQ_EV_EOF)

        def close(self) -> None:
            self._kqueue.close()

        def _change(self, fd: int, flags: int) -> None:
            self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)


class EdgePoller(_Kernel):
    """Any thread may call any method. `stop` ends all waits for good; call `close` after it.

    - `arm(fd)` watches `fd`. If it is watched already and has input, it is reported to a waiting thread again.
    - `remove(fd)` stops watching. A thread that got `fd` from `wait` before may still read it. It ignores unknown ones.
    - `wait()` waits for a socket with input, and returns it with whether its input has ended: the peer has closed, or
      the connection is broken. After `stop` it returns at once.
    """

    def __init__(self) -> None:
        self._stop_reader, self._stop_writer = socket.socketpair()
        super().__init__(self._stop_reader.fileno())

    def stop(self) -> None:
        """End the waits of all threads, now and from now on: no thread reads the byte."""
        self._stop_writer.send(b"\0")

    def close(self) -> None:
        """Free the descriptors, once no thread waits any more. Idempotent."""
        self._stop_reader.close()
        self._stop_writer.close()
        super().close()
