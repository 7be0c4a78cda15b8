"""A connection that a crew's threads read, while its reactor does the rest.

Rules of this module: those of `channel`, with reads from several threads: one at a time, in order, and none
after the descriptor is closed (its number may be another connection's by then).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from qstate.runtime.channel import HIGH_WATER_BYTES, LOW_WATER_BYTES, RECEIVE_BYTES, Channel, ChannelState
from qstate.runtime.crew import Crew
from qstate.runtime.line_limit import limited
from qstate.runtime.reactor import Reactor

__all__ = ["CrewChannel"]

log = limited(logging.getLogger(__name__))


class CrewChannel(Channel):
    """A channel whose `on_data` runs on a thread of the crew, for one piece of data at a time.

    `on_data` may give work for the thread that called it. It is done when another thread may read the connection
    and close it: it may take long.
    """

    __slots__ = ("_crew", "_reading")

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        crew: Crew,
        on_data: Callable[[bytes], Callable[[], None] | None],
        on_end: Callable[[], None],
        on_close: Callable[[BaseException | None], None],
        max_unsent_bytes: int,
    ) -> None:
        super().__init__(
            reactor, sock, on_data=on_data, on_end=on_end, on_close=on_close, max_unsent_bytes=max_unsent_bytes
        )
        self._crew = crew
        # Held while data is read and delivered, and while the socket is closed.
        self._reading = threading.Lock()

    def open(self) -> None:
        self._prepare()
        self._crew.add(self._sock.fileno(), self)

    def read_ready(self, ended: bool) -> None:
        data, work = b"", None
        with self._reading:
            if self._ended or self._paused or (self._input_ended and self.state is ChannelState.OPEN):
                return
            try:
                data = self._sock.recv(RECEIVE_BYTES)
                if not data:
                    self._on_input_ended()
                elif self.state is ChannelState.OPEN:
                    work = self._on_data(data)
            except (BlockingIOError, InterruptedError):
                return
            except Exception as exc:
                self._fail(exc)
            left = ended or len(data) == RECEIVE_BYTES
            if self.state is not ChannelState.CLOSED and not self._must_pause() and left:
                self._crew.arm(self._sock.fileno())
        if work is not None:
            try:
                work()
            except Exception as exc:
                self._fail(exc)

    def _fail(self, exc: Exception) -> None:
        """What goes wrong ends this connection, and nothing else."""
        if not isinstance(exc, OSError):
            log.error("a connection failed and is closed", exc_info=exc)
        self.close(exc)

    def _must_pause(self) -> bool:
        if len(self._unsent) <= HIGH_WATER_BYTES:
            return False
        # Under the lock, so that the reactor, which takes bytes away under it, sees the pause afterwards.
        with self._lock:
            self._paused = len(self._unsent) > HIGH_WATER_BYTES and self.state is ChannelState.OPEN
            return self._paused

    def _interest_wanted(self) -> int:
        with self._lock:
            resume = self._paused and (len(self._unsent) <= LOW_WATER_BYTES or self.state is not ChannelState.OPEN)
            if resume:
                self._paused = False
        if resume:
            self._crew.arm(self._sock.fileno())
        return self._write_interest()

    def _release(self) -> None:
        with self._reading:
            self._crew.remove(self._sock.fileno())
            super()._release()
