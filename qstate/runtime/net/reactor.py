"""A selector loop with timers: waits for sockets, time and calls from other threads.

Rules of this module: it knows when sockets become ready, and nothing of bytes or messages (`qstate.runtime.net.channel`
moves the bytes). No callback may block, because one loop runs all of them.

Callbacks run on the driving thread: the reactor's own (`start`), or the thread that calls `turn`. Other threads may
only call `call_soon` and `stop`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from qstate.host.line_limit import limited

__all__ = ["Reactor", "Timer"]

log = limited(logging.getLogger(__name__))

#: Cancelled timers are removed from the heap when there are more of them than this, and more than live ones.
SWEEP_TIMERS = 512
#: The bound on one wait: the kernel counts milliseconds in 31 bits, and a timer may be due later.
LONGEST_WAIT_S = 86_400.0


class Timer:
    """A scheduled call. `cancel` prevents it and is idempotent."""

    __slots__ = ("_reactor", "action", "due")

    def __init__(self, reactor: Reactor, due: float, action: Callable[[], None]) -> None:
        self._reactor = reactor
        self.due = due
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        if self.action is not None:
            self.action = None
            self._reactor._timer_cancelled()


class Reactor:
    """Waits for sockets, timers and calls from other threads, and runs their callbacks.

    `clock` returns monotonic seconds. Call `start` for a thread of its own, or `turn` repeatedly. `stop` ends either;
    the last turn calls `on_stop` and closes the selector.
    """

    def __init__(self, name: str = "reactor", clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.clock = clock
        self.stopped = False
        self._selector = selectors.DefaultSelector()
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._timer_order = itertools.count()
        self._cancelled = 0
        #: Called when the reactor stops. An object with a socket on the reactor adds a call that frees the socket.
        self.on_stop: set[Callable[[], None]] = set()
        self._driver = 0
        self._woken = False
        self._released = False
        self._thread: threading.Thread | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wake)

    def start(self) -> None:
        """Drive the reactor on a daemon thread of its own, until `stop`."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current turn. Any thread. Idempotent."""
        self.call_soon(self._stop)

    def join(self, timeout_s: float) -> bool:
        """Wait for the reactor's own thread after `stop`. False: it still runs after the timeout."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def call_soon(self, action: Callable[..., None], *args: Any) -> None:
        """Run `action(*args)` on the driving thread. Any thread. After the last turn it does nothing."""
        self._soon.append((action, args))
        # The driving thread reads the queue before it waits, so only other threads have to wake it.
        if self._driver != threading.get_ident():
            self._wake()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Run `action()` after a delay. Only the driving thread."""
        timer = Timer(self, self.clock() + delay_s, action)
        heapq.heappush(self._timers, (timer.due, next(self._timer_order), timer))
        return timer

    def in_driver(self) -> bool:
        """Whether the calling thread drives the reactor now."""
        return self._driver == threading.get_ident()

    def watch(self, sock: socket.socket, interest: int, ready: Callable[[int], None]) -> None:
        """Call `ready(mask)` when the socket is ready for any of `interest` (selectors' EVENT_ flags); 0 for never."""
        if sock.fileno() in self._selector.get_map():
            if interest:
                self._selector.modify(sock, interest, ready)
            else:
                self._selector.unregister(sock)
        elif interest:
            self._selector.register(sock, interest, ready)

    def turn(self, longest_wait_s: float | None = None) -> None:
        """Wait for events for at most `longest_wait_s`, and run their callbacks."""
        self._driver = threading.get_ident()
        for key, mask in self._selector.select(self._wait_s(longest_wait_s)):
            try:
                key.data(mask)
            except Exception:
                log.exception("a callback of %s failed; its connection may hang until its deadline", self.name)
        self._run_timers()
        for _ in range(len(self._soon)):
            action, args = self._soon.popleft()
            self._call(action, *args)
        if self.stopped:
            self._release()

    def _run(self) -> None:
        while not self.stopped:
            self.turn()

    def _call(self, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception:
            log.exception("a call on %s failed", self.name)

    def _wait_s(self, longest_s: float | None) -> float | None:
        if self._soon:
            return 0.0
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if self._timers:
            until_due = max(0.0, min(self._timers[0][0] - self.clock(), LONGEST_WAIT_S))
            return until_due if longest_s is None else min(until_due, longest_s)
        return longest_s

    def _run_timers(self) -> None:
        if not self._timers:
            return
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
            else:
                self._call(action)

    def _timer_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > SWEEP_TIMERS and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].action is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _wake(self) -> None:
        if self._woken:
            return
        self._woken = True
        try:
            self._wake_writer.send(b"\0")
        except OSError:
            # Full: the reactor is being woken already. Closed: it has stopped, and no calls run any more.
            return

    def _drain_wake(self, mask: int) -> None:
        self._wake_reader.recv(4096)
        # Clear before the queue is read: this turn runs calls queued before, and calls queued later wake the next turn.
        self._woken = False

    def _stop(self) -> None:
        self.stopped = True

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        for free in list(self.on_stop):
            self._call(free)
        self._timers.clear()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
