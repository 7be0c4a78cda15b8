"""Waiting for sockets by one thread at a time, which stays awake for a moment where answers come at once.

Rules of this module: it wraps `select.poll` and decides when to sleep. It knows nothing of what is waited for.

To put a thread to sleep and to wake it up takes the kernel 20 to 30 us, on two processors in a virtual machine; an
answer over loopback takes 50. A caller with nothing else to do, who asks one thing after the other, gets them a quarter
sooner when the thread looks again and again instead. That burns a processor while it lasts, so it is done only while
it is known to pay: the last answers came at once, this wait follows the last one at once, and no other thread waits
behind this one (looking would take the interpreter's lock from it: measured, two threads lost a quarter of their gets).
"""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable

__all__ = ["KeenPoll"]

#: What comes within this time comes at once, in seconds; nobody stays awake for longer.
AT_ONCE_S = 500e-6
#: What takes longer counts as this long, so that a single slow answer is soon forgotten.
LONG_S = 5 * AT_ONCE_S
#: How much of the usual time each wait is.
SHARE = 1 / 8
#: The kernel counts milliseconds in 31 bits.
LONGEST_WAIT_S = 86_400.0
#: So many waits without company make a thread lonely.
LONELY_WAITS = 64


class KeenPoll:
    """Like `select.poll`, with times in seconds. One thread waits at a time; others may register meanwhile."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._poll = select.poll()
        self._usual_s = 0.0
        self._last_at = -math.inf
        self._lonely = 0

    def register(self, sock: socket.socket, events: int) -> None:
        """Watch the socket for these events from now on; a wait that is under way may not notice."""
        self._poll.register(sock, events)

    def unregister(self, sock: socket.socket) -> None:
        """Watch it no more. Raises `KeyError` when it is not watched."""
        self._poll.unregister(sock)

    def company(self) -> None:
        """Another thread waits as well."""
        self._lonely = 0

    def keen(self, now: float) -> bool:
        """Whether a wait that begins now would stay awake for a moment."""
        return self._lonely >= LONELY_WAITS and self._usual_s < AT_ONCE_S and now - self._last_at < AT_ONCE_S

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """The descriptors and events of what happens within this time, or a day; empty when nothing does."""
        poll, clock = self._poll.poll, self._clock
        if timeout_s <= 0:
            return poll(0)
        began = clock()
        ready: list[tuple[int, int]] = []
        if self.keen(began):
            moment_s = min(AT_ONCE_S, timeout_s)
            while not (ready := poll(0)) and clock() < began + moment_s:
                pass
            timeout_s -= moment_s
        ready = ready or poll(min(timeout_s, LONGEST_WAIT_S) * 1000)
        self._last_at = now = clock()
        self._usual_s += (min(now - began, LONG_S) - self._usual_s) * SHARE
        self._lonely += 1
        return ready
