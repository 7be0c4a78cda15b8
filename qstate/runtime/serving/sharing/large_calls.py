"""The calls that take several turns: a few of them at a time, and one of each connection.

Rules of this module: it knows calls, their connections and the time. It must not know what a call asks for, nor which
thread may execute: its endpoint does.

A call holds a part of its answer until the last step, which may be as large as a frame. So the number of calls that
have begun is bounded for the whole endpoint, however many connections ask. The others wait, in the order in which
their connections came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import thread_time

from qstate.protocol.connection import Answer
from qstate.runtime.serving.client_connection import AcceptedConnection, Call

__all__ = ["LargeCalls"]

#: So many have begun at the same time.
MOST_BEGUN = 4


class LargeCalls:
    """`answer_to(call, now)` takes the next of the call's steps. `call.steps` is None after the last one."""

    def __init__(self, clock: Callable[[], float], answer_to: Callable[[Call, float], Answer | None]) -> None:
        self._clock = clock
        self._answer_to = answer_to
        self._lock = threading.Lock()
        #: The connections whose next call may begin.
        self._waiting: deque[AcceptedConnection] = deque()
        #: The calls that have begun and that no thread works on.
        self._begun: deque[Call] = deque()
        self._free = MOST_BEGUN

    def pending(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._begun or (self._waiting and self._free))

    def add(self, call: Call) -> None:
        """Add a call with steps. Any thread."""
        with self._lock:
            call.connection.large_calls.append(call)
            self._queue(call.connection)

    def has_room(self, connection: AcceptedConnection) -> None:
        """The client has read enough for another answer, or is gone. Any thread."""
        with self._lock:
            self._queue(connection)

    def step(self) -> bool:
        """Take one step of one call. Returns whether there was any. Several threads may run it at once."""
        with self._lock:
            call = self._next()
        if call is None:
            return False
        began = thread_time()
        answer = self._answer_to(call, self._clock())
        if call.steps is None and answer is not None:
            call.answer(answer)
        call.connection.charge(thread_time() - began)
        if call.steps is not None:
            self._begun.append(call)
            return True
        with self._lock:
            self._free += 1
            call.connection.large_queued = False
            self._queue(call.connection)
        return True

    def _queue(self, connection: AcceptedConnection) -> None:
        if connection.large_calls and not connection.large_queued:
            connection.large_queued = True
            self._waiting.append(connection)

    def _next(self) -> Call | None:
        while self._free and self._waiting:
            connection = self._waiting.popleft()
            if not connection.may_answer():
                connection.large_queued = False  # `has_room` follows
            else:
                self._free -= 1
                self._begun.append(connection.large_calls.popleft())
        return self._begun.popleft() if self._begun else None
