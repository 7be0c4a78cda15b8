"""The order of answers: connections take turns, however many requests each has sent, and however long they take.

Rules of this module: it knows calls, their connections and the time. It must not know what a call asks for, nor which
thread may execute: its endpoint does.

Nothing here is locked: appending to a deque and taking from it are atomic. A connection with calls is queued at least
once: a thread that adds a call reads `queued` afterwards, and a thread that takes a connection clears `queued` and then
reads the calls. A connection that is queued twice gets an empty turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import thread_time

from qstate.protocol.connection import Answer
from qstate.runtime.serving.client_connection import AcceptedConnection, Call
from qstate.runtime.serving.sharing.large_calls import LargeCalls

__all__ = ["TURN_BYTES", "Turns"]

#: The bounds of one connection's turn. The answers of a turn are written together.
TURN_BYTES = 64 * 1024
TURN_S = 0.001
#: A connection whose turn took longer, because one of its answers did, is a slow one until a turn takes less.
SLOW_S = 0.003


class Turns:
    """The calls that wait for a thread.

    `answer_to(call, now)` returns the answer, or None: then it follows later, or after further steps if `call.steps` is
    set.

    Slow connections and such steps share half of the time, if others wait. So an answer that takes long, or any number
    of them, delays the others by one at a time.
    """

    def __init__(self, clock: Callable[[], float], answer_to: Callable[[Call, float], Answer | None]) -> None:
        self._clock = clock
        self._answer_to = answer_to
        #: The connections with waiting calls, in the order of their turns.
        self.connections: deque[AcceptedConnection] = deque()
        self.large = LargeCalls(clock, answer_to)
        self._slow: deque[AcceptedConnection] = deque()
        #: How long the last slow work took, less what others have had since.
        self._owed_s = 0.0

    def pending(self) -> bool:
        """Whether `execute` has something to do."""
        return bool(self.connections or self._slow) or self.large.pending()

    def add(self, call: Call) -> None:
        """Add a call, to wait for its connection's turn. Any thread."""
        call.connection.calls.append(call)
        self.queue(call.connection)

    def waited_s(self) -> float:
        """How long the next call has been waiting; 0 when none waits."""
        try:
            return self._clock() - self.connections[0].calls[0].received_at
        except IndexError:
            return 0.0

    def execute(self) -> None:
        """Give each connection its turn until no calls wait. Several threads may run it at once."""
        while self._quick_turn() or self._slow_work():
            """Each in turn."""

    def _quick_turn(self) -> bool:
        if self._owed_s <= 0.0 and (self._slow or self.large.pending()):
            return False
        took_s = self._turn_of(self.connections)
        if took_s is None:
            return False
        self._owed_s -= took_s
        return True

    def _slow_work(self) -> bool:
        began = self._clock()
        worked = (self._turn_of(self._slow) is not None) | self.large.step()
        self._owed_s = self._clock() - began
        return worked or bool(self.connections)

    def _turn_of(self, lane: deque[AcceptedConnection]) -> float | None:
        """The seconds of the next turn of a lane, None if it is empty."""
        try:
            connection = lane.popleft()
        except IndexError:
            return None
        if connection.slow and lane is self.connections:  # it was queued before that was known
            self._slow.append(connection)
            return 0.0
        connection.queued = False
        began, cpu_began = self._clock(), thread_time()
        self._turn(connection)
        took_s = self._clock() - began
        connection.charge(thread_time() - cpu_began)
        connection.slow = took_s > SLOW_S
        return took_s

    def queue(self, connection: AcceptedConnection) -> None:
        """Queue a connection with calls for its turn. Any thread."""
        if not connection.queued:
            connection.queued = True
            (self._slow if connection.slow else self.connections).append(connection)

    def _turn(self, connection: AcceptedConnection) -> None:
        """Answer some of a connection's calls. Other threads may take the others at the same time.

        A congested connection keeps its calls. It is queued again when its client has read enough.
        """
        calls: list[Call] = []
        parts: list[bytes] = []
        size, now = 0, self._clock()
        until = now + TURN_S
        try:
            while now < until and size <= TURN_BYTES and connection.may_answer():
                call = connection.calls.popleft()
                if connection.calls:
                    self.queue(connection)
                answer = self._answer_to(call, now)
                if call.steps is not None:
                    self.large.add(call)
                elif answer is not None:
                    data = call.encode(answer)
                    calls.append(call)
                    parts.append(data)
                    size += len(data)
                now = self._clock()
        except IndexError:
            return
        finally:
            if size:
                connection.send_now(parts[0] if len(parts) == 1 else b"".join(parts))
            for call in calls:
                call.sent()
