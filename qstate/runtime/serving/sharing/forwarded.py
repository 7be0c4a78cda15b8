"""How many calls of a connection a proxy forwards at a time, so that the client has room for their answers.

Rules of this module: it counts calls and bytes. It must not know what a call asks for, nor who answers it.

An owner sends values whether the client reads or not. So a proxy asks for as many as there is room for, by the size of
those before: at first for few, then for twice as many after each small answer.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Forwarded"]

#: So many are forwarded before the size of an answer is known.
FIRST = 4


class Forwarded:
    """The forwarded calls of a connection whose unread answers may take `room_bytes`. Any thread."""

    __slots__ = ("_asked", "_expected_bytes", "_room_bytes")

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._asked: set[Hashable] = set()
        #: What an answer is expected to take.
        self._expected_bytes = room_bytes // FIRST

    def __bool__(self) -> bool:
        return bool(self._asked)

    def allows_another(self, waiting_bytes: int) -> bool:
        """Whether there is room for the answer of one more call, beside what the client has not read."""
        asked = len(self._asked)
        if not asked and not waiting_bytes:
            return True
        return waiting_bytes + (asked + 1) * self._expected_bytes <= self._room_bytes

    def add(self, call: Hashable) -> None:
        """An owner is about to be asked."""
        self._asked.add(call)

    def arrived(self, call: Hashable, size: int) -> bool:
        """The answer to a call has so many bytes, and was sent on. Returns whether it was forwarded."""
        if call not in self._asked:
            return False
        self._asked.discard(call)
        self._expected_bytes = max(size, self._expected_bytes // 2)
        return True
