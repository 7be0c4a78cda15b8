"""The prompt of the shell: reads lines with history and completion. It wraps the optional package prompt_toolkit.

Rules of this module: it imports the package when a prompt is opened, and runs no command.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qstate.cli.completion.engine import complete
from qstate.cli.completion.names import LiveNames
from qstate.cli.completion.shells import split_line
from qstate.cli.output.terminal import shown
from qstate.cli.shell.session import PROGRAM, Session
from qstate.errors import InstallationError
from qstate.host.home import in_home
from qstate.host.private_files import create_file, is_own_directory, make_directories, open_own
from qstate.installation import DISTRIBUTION

__all__ = ["history_file", "open_prompt"]

#: The word that is typed, as it stands on the line.
_TYPED = re.compile(r"(?:\\.|[^\s\\])*$")


def history_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the lines of all shells are kept: `qstate/history` in `$XDG_STATE_HOME`, by default `~/.local/state`."""
    home = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return in_home(home) / "qstate" / "history"


def open_prompt(session: Session) -> Callable[[], str]:
    """A function that reads a line. It raises `EOFError` at the end, and `KeyboardInterrupt` at Ctrl-C.

    Raises `InstallationError` without the package.
    """
    try:
        from prompt_toolkit import PromptSession  # noqa: PLC0415  # optional, as the module says
        from prompt_toolkit.completion import ThreadedCompleter  # noqa: PLC0415
    except ImportError as exc:
        raise InstallationError(f"the shell needs prompt-toolkit: pip install '{DISTRIBUTION}[shell]'") from exc
    prompt: PromptSession[str] = PromptSession(
        history=_history(), completer=ThreadedCompleter(_completer(session)), complete_while_typing=False
    )
    return lambda: prompt.prompt(session.prompt)


def _history() -> Any:
    """The history in a file that only this user can read; in memory where there can be none."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory  # noqa: PLC0415

    path = history_file()
    try:
        make_directories(path.parent)
        if not is_own_directory(path.parent):  # the file is opened by its name, later
            raise PermissionError(errno.EPERM, "other users can change its directory")
        try:
            opened = create_file(path)
        except FileExistsError:
            opened = open_own(path)
        os.fchmod(opened, 0o600)
        os.close(opened)
    except OSError as exc:
        print(f"qstate: lines are not kept in {shown(str(path))}: {exc.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(str(path))


def _completer(session: Session) -> Any:
    from prompt_toolkit.completion import Completer, Completion, PathCompleter  # noqa: PLC0415
    from prompt_toolkit.document import Document  # noqa: PLC0415

    names = LiveNames(keys=True, inherit=session.inherit)

    class Line(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterator[Completion]:
            line = document.text_before_cursor
            words = split_line(line)
            typed = _TYPED.search(line)
            if not words or typed is None:
                return
            if len(words) > 1 and words[0] == PROGRAM:
                del words[0]
            answer = complete(session.parser, words[:-1], words[-1], names)
            if answer.places:
                yield from PathCompleter(expanduser=True).get_completions(Document(words[-1]), complete_event)
            only = len(answer.candidates) == 1 and not answer.candidates[0].text.endswith("=")
            for one in answer.candidates:
                text = shlex.quote(one.text) + " " * only
                yield Completion(text, -len(typed[0]), display=one.text, display_meta=shown(one.about))

    return Line()
