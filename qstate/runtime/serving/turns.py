"""Whose requests are answered next: connections take turns, however many requests each has sent.

Rules of this module: it knows calls, their sessions and the time. It must not know what a call asks for, nor which
thread may execute: its endpoint does.

Nothing here is locked. Appending to a deque and taking from it is one step of the interpreter; a session that has calls
is queued at least once, for who adds a call looks at `queued` afterwards and who takes a session looks at its calls
after `queued` is False. Queued twice, it has an empty turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qstate.protocol import Answer
from qstate.runtime.serving.client_connection import Call, Session

__all__ = ["TURN_BYTES", "Turns"]

#: A turn of one connection, while others wait; its answers are written together.
TURN_BYTES = 64 * 1024
TURN_S = 0.001


class Turns:
    """The calls that wait for a thread. `answer_to(call, now)` makes an answer, or gives None when it comes later."""

    def __init__(self, clock: Callable[[], float], answer_to: Callable[[Call, float], Answer | None]) -> None:
        self._clock = clock
        self._answer_to = answer_to
        #: Whose turn comes, in order: sessions with calls that wait.
        self.sessions: deque[Session] = deque()

    def add(self, call: Call) -> None:
        """Let a call wait for its session's turn. Any thread."""
        call.session.calls.append(call)
        self.queue(call.session)

    def waited_s(self) -> float:
        """How long the next call has been waiting; 0 when none waits."""
        try:
            return self._clock() - self.sessions[0].calls[0].received_at
        except IndexError:
            return 0.0

    def execute(self) -> None:
        """Give each session its turn until no calls wait. Several threads may, at once."""
        while True:
            try:
                session = self.sessions.popleft()
            except IndexError:
                return
            session.queued = False
            self._turn(session)

    def queue(self, session: Session) -> None:
        """Let a session with calls have its turn. Any thread."""
        if not session.queued:
            session.queued = True
            self.sessions.append(session)

    def _turn(self, session: Session) -> None:
        """Answer some of a session's calls. Other threads may take the rest of them meanwhile.

        Those of a client that should first read what it has got are left; its session is queued when it has.
        """
        calls: list[Call] = []
        parts: list[bytes] = []
        size, now = 0, self._clock()
        until = now + TURN_S
        try:
            while now < until and size <= TURN_BYTES and not session.channel.is_congested():
                call = session.calls.popleft()
                if session.calls:
                    self.queue(session)
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
                session.channel.send(parts[0] if len(parts) == 1 else b"".join(parts))
            for call in calls:
                call.sent()
