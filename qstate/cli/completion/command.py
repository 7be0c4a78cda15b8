"""The command `qstate completion SHELL`, and what its script asks: `qstate __complete SHELL ...`.

Rules of this module: it joins shells, engine and names; each of them knows nothing of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from qstate.cli.completion.engine import complete
from qstate.cli.completion.names import LiveNames
from qstate.cli.completion.shells import SCRIPTS, answer_lines, words_of

__all__ = ["ASKED", "add_completion_command", "print_candidates"]

#: Instead of a command: it is for scripts, and takes any words.
ASKED = "__complete"


def add_completion_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    completion = commands.add_parser(
        "completion",
        help="print the script that completes commands, options, jobs and states in a shell",
        description='For one shell: eval "$(qstate completion bash)", the same with zsh, qstate completion fish | '
        "source. For all: write that into ~/.bashrc, ~/.zshrc after compinit, ~/.config/fish/config.fish.",
    )
    completion.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS))
    completion.set_defaults(run=_completion)


def _completion(arguments: argparse.Namespace) -> None:
    print(SCRIPTS[arguments.shell], end="")


def print_candidates(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print what may come next. The arguments are the shell, and what its script passes."""
    shell = arguments[0] if arguments else ""
    found = words_of(shell, arguments[1:])
    if found is not None:
        words, incomplete = found
        answer = complete(parser, words, incomplete, LiveNames())
        for line in answer_lines(shell, answer, incomplete):
            print(line)
