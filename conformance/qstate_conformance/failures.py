"""What a failed law has to say: the broken promise, and the shortest program that breaks it.

Rules of this module: it reads exceptions as hypothesis leaves them, notes included. The traceback is not its matter.
"""

from __future__ import annotations

__all__ = ["failure_message"]

#: Notes for those who can edit the test; a law is repeated from its seed instead.
_NOT_FOR_READERS = ("You can reproduce this",)


def failure_message(exc: BaseException) -> str:
    """The exception in words, followed by the example or the program that provokes it."""
    words = f"{type(exc).__name__}: {exc}".strip()
    notes = [str(note) for note in getattr(exc, "__notes__", ()) if not str(note).strip().startswith(_NOT_FOR_READERS)]
    return "\n".join([words, *notes]).strip()
