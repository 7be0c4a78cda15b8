"""What a failed law has to say: the broken promise, where it broke, and the shortest program that breaks it.

Rules of this module: it reads exceptions as hypothesis leaves them, notes included. Of a traceback it shows the law's
own line and the lines of the subject's author; the rest of it is in the reports that have the whole traceback.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import FrameSummary, extract_tb

import hypothesis
import pluggy
import pytest

import qstate

__all__ = ["failure_message"]

#: Notes for those who can edit the test; a law is repeated from its seed instead.
_NOT_FOR_READERS = ("You can reproduce this",)

_SUITE = Path(__file__).parent
_QSTATE = Path(qstate.__file__).parent
_MACHINERY = (
    *(Path(str(module.__file__)).parent for module in (hypothesis, pluggy, pytest)),
    Path(pytest.__file__).parent.with_name("_pytest"),
)
_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = ("site-packages", "dist-packages")


def failure_message(exc: BaseException) -> str:
    """The exception in words, the lines where it came up, and the example or the program that provokes it."""
    words = f"{type(exc).__name__}: {exc}".strip()
    notes = [str(note) for note in getattr(exc, "__notes__", ()) if not str(note).strip().startswith(_NOT_FOR_READERS)]
    return "\n".join([words, *_where(exc), *notes]).strip()


def _where(exc: BaseException) -> Iterator[str]:
    """The law's line, then the author's frames, those of causes first, each with its line of code."""
    frames = list(extract_tb(exc.__traceback__))
    yield from (_shown(frame) for frame in [frame for frame in frames if _is_law(Path(frame.filename))][-1:])
    causes = list(_causes(exc))
    of_author = [_frames_of(cause, _is_authors) for cause in causes]
    # For a backend that comes with qstate, qstate is the author.
    shown = of_author if any(of_author) else [_frames_of(cause, _is_qstates) for cause in causes]
    for cause, own in zip(causes, shown, strict=True):
        yield from (_shown(frame) for frame in own)
        if own and cause is not exc:
            yield f"{type(cause).__name__}: {cause}"


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """The causes of the exception, the first one first, and the exception itself."""
    chain = [exc]
    while True:
        last = chain[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or before in chain:
            return (yield from reversed(chain))
        chain.append(before)


def _frames_of(exc: BaseException, is_own: Callable[[Path], bool]) -> list[FrameSummary]:
    return [frame for frame in extract_tb(exc.__traceback__) if is_own(Path(frame.filename))]


def _is_law(path: Path) -> bool:
    return path.parent.parent == _SUITE and path.name.startswith("laws_")


def _is_qstates(path: Path) -> bool:
    return path.is_relative_to(_QSTATE)


def _is_authors(path: Path) -> bool:
    """Whether a frame is the author's: not of the suite, qstate, pytest, hypothesis or Python's library."""
    if not path.is_absolute() or any(path.is_relative_to(other) for other in (_SUITE, _QSTATE, *_MACHINERY)):
        return False
    inside = path.relative_to(_LIBRARY).parts[:1] if path.is_relative_to(_LIBRARY) else _INSTALLED
    return bool(inside) and inside[0] in _INSTALLED


def _shown(frame: FrameSummary) -> str:
    path, here = Path(frame.filename), Path.cwd()
    name = path.name if _is_law(path) else str(path.relative_to(here) if path.is_relative_to(here) else path)
    return f"{name}:{frame.lineno}, in {frame.name}\n    {frame.line}"
