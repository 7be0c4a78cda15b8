"""The command `qstate shell [JOB [STATE]]`: a prompt at which commands are typed.

Rules of this module: it reads line after line and gives it to the session.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from qstate.cli.connection import add_connection_options
from qstate.cli.shell.prompt import open_prompt
from qstate.cli.shell.session import Build, Session
from qstate.errors import ConfigError

__all__ = ["add_shell_command"]

WELCOME = "Commands are those of qstate: help lists them, Tab completes, Ctrl-C ends a command, Ctrl-D the shell."


def add_shell_command(commands: Any, build: Build, run: Callable[[argparse.Namespace], int]) -> None:
    """Add the command to argparse's subparsers. `build` makes the parser of the commands inside, `run` runs one."""
    shell = commands.add_parser("shell", help="a prompt with completion of jobs, states and keys")
    shell.add_argument("chosen_job", metavar="JOB", nargs="?", help="the job to begin with")
    shell.add_argument("chosen_state", metavar="STATE", nargs="?", help="the state to begin with")
    add_connection_options(shell)
    shell.set_defaults(run=partial(_shell, build, run))


def _shell(build: Build, run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> None:
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise ConfigError("the shell is for a terminal: in a script, write each line as a command of its own")
    session = Session(build, run, arguments)
    read = open_prompt(session)
    chosen = [name for name in (arguments.chosen_job, arguments.chosen_state) if name is not None]
    if chosen:
        session.run(["use", "--", *chosen])
    print(WELCOME)
    while not session.over:
        try:
            session.execute(read())
        except KeyboardInterrupt:  # at the prompt: the line is dropped
            continue
        except EOFError:
            break
