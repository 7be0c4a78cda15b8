"""Adds the traceback of the user's code to the text of an error.

Rules of this module: exceptions in, text out. Only an error's class and text are sent between processes, and Spark
shows only the text. So the text must contain the file, the line and the frames of the user's code. It omits frames of
qstate; the task manager's log has all frames.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary, TracebackException

import qstate
from qstate.errors import JobError, QStateError, SerializationError

__all__ = ["MOST_SHOWN", "described", "shortened", "user_traceback", "with_user_traceback"]

#: The most characters of a traceback, and of an exception's own text, in an error.
MOST_SHOWN, MOST_TEXT = 8192, 2048

_OWN = str(Path(qstate.__file__).parent) + "/"
_HIDDEN = (_OWN, "<frozen importlib")
_STANDARD = sysconfig.get_paths()["stdlib"] + "/"
#: Directories of installed packages, which may be inside that of the standard library.
_INSTALLED = ("/site-packages/", "/dist-packages/")


def described(exc: BaseException) -> str:
    """The class and the text of any exception of the user's code."""
    try:
        text = str(exc)
    except Exception as failed:  # __str__ may be the user's own code
        text = f"(its __str__ failed: {type(failed).__name__})"
    return f"{type(exc).__name__}: {text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + ' ...'}"


def with_user_traceback(error: QStateError) -> QStateError:
    """The error with the traceback of the user's code in its text; the same object when no such code failed."""
    found = user_traceback(error)
    if not found:
        return error
    kind = SerializationError if isinstance(error, SerializationError) else JobError
    return kind(f"{error}\n{found}")


def user_traceback(error: BaseException) -> str:
    """The traceback of the user's exception behind an error, as Python prints it, without the frames of qstate.

    Empty when no code of the user failed, as for an error of qstate's own. It has at most `MOST_SHOWN` characters; the
    middle of a longer one is omitted.
    """
    if isinstance(error, QStateError) and not isinstance(error, JobError | SerializationError):
        return ""  # an error of storage, of a peer or of the settings
    for cause in _chain(error):
        found = TracebackException.from_exception(cause, compact=True)
        if any(_is_users(frame.filename) for frame in found.stack):
            _trim(found)
            return shortened("".join(found.format()).rstrip())
    return ""


def shortened(text: str) -> str:
    """The text; only its beginning and end when it is longer than `MOST_SHOWN`."""
    if len(text) <= MOST_SHOWN:
        return text
    half = MOST_SHOWN // 2
    start, end = text[:half].rpartition("\n")[0], text[-half:].partition("\n")[2]
    left_out = len(text) - len(start) - len(end)
    return f"{start}\n  ... {left_out} characters are left out; the task manager's log has them ...\n{end}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, the error first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _trim(found: TracebackException) -> None:
    """Remove the frames of qstate, also from the exceptions that led to this one."""
    found.stack = StackSummary.from_list([frame for frame in found.stack if not frame.filename.startswith(_HIDDEN)])
    for earlier in (found.__cause__, found.__context__):
        if earlier is not None:
            _trim(earlier)


def _is_users(filename: str) -> bool:
    """Whether a frame is neither qstate's nor the standard library's, nor of a compiled package."""
    if filename.startswith((_OWN, "<frozen ")) or filename.endswith((".pyx", ".pxi", ".pxd")):
        return False
    return not filename.startswith(_STANDARD) or any(directory in filename for directory in _INSTALLED)
