"""Shows the progress of a run: a line for each law, or one line that changes where the terminal can do that.

Rules of this module: it writes to the stream it is given and knows nothing of verdicts but their names.
"""

from __future__ import annotations

from typing import TextIO

from qstate_conformance.laws import Law
from qstate_conformance.outcomes import LawOutcome, Verdict
from qstate_conformance.recording import Listener

__all__ = ["Progress"]

#: Goes to the line's start and erases what is right of the cursor (ECMA-48).
_AGAIN = "\r\x1b[K"


class Progress(Listener):
    """Writes progress to a stream. On a terminal, laws that passed leave no line behind."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._overwrites = stream.isatty()
        self._done = 0

    def begins(self, law: Law, total: int) -> None:
        if self._overwrites:
            self._write(f"{_AGAIN}{self._done + 1:4}/{total} {law.id}"[: 2 * len(_AGAIN) + 100])

    def ended(self, outcome: LawOutcome, done: int, total: int) -> None:
        self._done = done
        line = f"{done:4}/{total} {outcome.verdict.value:8} {outcome.law} ({outcome.seconds:.1f} s)"
        if not self._overwrites:
            self._write(line + "\n")
        elif outcome.verdict is not Verdict.PASSED:
            self._write(f"{_AGAIN}{line}\n")

    def finished(self) -> None:
        """Leave the terminal's line clean for what comes after."""
        if self._overwrites:
            self._write(_AGAIN)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
