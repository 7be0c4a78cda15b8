"""The order of answers: connections take turns, however many requests each has sent.

Rules of this module: it knows calls, their connections and the time. It must not know what a call asks for, nor which
thread may execute: its endpoint does.

Nothing here is locked: appending to a deque and taking from it are atomic. A connection with calls is queued at least
once: a thread that adds a call reads `queued` afterwards, and a thread that takes a connection clears `queued` and then
reads the calls. A connection that is queued twice gets an empty turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qstate.protocol import Answer
from qstate.runtime.serving.client_connection import AcceptedConnection, Call

__all__ = ["TURN_BYTES", "Turns"]

#: The bounds of one connection's turn. The answers of a turn are written together.
TURN_BYTES = 64 * 1024
TURN_S = 0.001


class Turns:
    """The calls that wait for a thread. `answer_to(call, now)` returns the answer, or None if it follows later."""

    def __init__(self, clock: Callable[[], float], answer_to: Callable[[Call, float], Answer | None]) -> None:
        self._clock = clock
        self._answer_to = answer_to
        #: The connections with waiting calls, in the order of their turns.
        self.connections: deque[AcceptedConnection] = deque()

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
        while True:
            try:
                connection = self.connections.popleft()
            except IndexError:
                return
            connection.queued = False
            self._turn(connection)

    def queue(self, connection: AcceptedConnection) -> None:
        """Queue a connection with calls for its turn. Any thread."""
        if not connection.queued:
            connection.queued = True
            self.connections.append(connection)

    def _turn(self, connection: AcceptedConnection) -> None:
        """Answer some of a connection's calls. Other threads may take the others at the same time.

        A congested connection keeps its calls. It is queued again when its client has read enough.
        """
        calls: list[Call] = []
        parts: list[bytes] = []
        size, now = 0, self._clock()
        until = now + TURN_S
        try:
            while now < until and size <= TURN_BYTES and not connection.channel.is_congested():
                call = connection.calls.popleft()
                if connection.calls:
                    self.queue(connection)
                answer = self._answer_to(call, now)
                if answer is not None:
                    data = call.encode(answer)
                    calls.append(call)
                    parts.append(data)
                    size += len(data)
                now = self._clock()
        except IndexError:
            return
        finally:
            if size:
                connection.channel.send(parts[0] if len(parts) == 1 else b"".join(parts))
            for call in calls:
                call.sent()
