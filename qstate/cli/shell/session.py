"""A session of the shell: what was chosen, and the lines that are typed.

Rules of this module: lines in, commands run. It knows neither terminals nor how lines are read. A mistake, an error or
Ctrl-C ends the command, never the session.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from qstate.cli.connection import client_of, inherit
from qstate.cli.output.terminal import shown
from qstate.cli.parsing import NOTHING_CHOSEN, Chosen, Parser
from qstate.cli.queries.get import listed

__all__ = ["Build", "Session"]

#: Makes the parser for what was chosen, with further commands.
Build = Callable[[Chosen, Callable[[Any], None]], Parser]
PROGRAM = "qstate"


class Session:
    """The commands of one shell. `run` runs the arguments of one, and prints its errors."""

    def __init__(self, build: Build, run: Callable[[argparse.Namespace], int], connection: argparse.Namespace) -> None:
        self._build = build
        self._run = run
        self._connection = connection
        self.chosen = NOTHING_CHOSEN
        self.over = False
        self.parser = build(self.chosen, self._add_own)

    @property
    def prompt(self) -> str:
        """What stands before the cursor: the names that need not be typed."""
        names = [name for name in (self.chosen.job, self.chosen.state) if name is not None]
        return f"{PROGRAM} {shown('/'.join(names))}> " if names else f"{PROGRAM}> "

    def execute(self, line: str) -> None:
        """Run a line."""
        try:
            words = shlex.split(line, comments=True)
        except ValueError as exc:
            print(f"qstate: {exc}: end the quotes, or write \\' for one")
            return
        if words[:1] == [PROGRAM]:
            del words[0]
        if words:
            self.run(words)

    def run(self, words: list[str]) -> int:
        """Run a command. Returns its exit code."""
        try:
            arguments = self.parser.parse_args(words)
        except SystemExit as exc:  # the parser has printed the help or the mistake
            return int(exc.code or 0)
        self.inherit(arguments)
        return self._run(arguments)

    def inherit(self, arguments: argparse.Namespace) -> None:
        """Add the connection of the session to arguments without one."""
        inherit(arguments, self._connection)

    def _add_own(self, commands: Any) -> None:
        use = commands.add_parser("use", help="choose a job, and a state, for the commands that follow; or none")
        use.add_argument("use_job", metavar="JOB", nargs="?", help="the job")
        use.add_argument("use_state", metavar="STATE", nargs="?", help="the state")
        use.set_defaults(run=self._use)
        own = commands.add_parser("help", help="list the commands, or explain one")
        own.add_argument("words", metavar="COMMAND", nargs="*", help="the command")
        own.set_defaults(run=self._help)
        commands.add_parser("exit", help="end the shell; so does Ctrl-D").set_defaults(run=self._exit)

    def _use(self, arguments: argparse.Namespace) -> None:
        chosen = Chosen(arguments.use_job, arguments.use_state)
        if chosen.job is not None:
            with client_of(self._connection) as client:
                if chosen.state is not None:
                    listed(client, chosen.job, chosen.state)
                else:
                    client.states(chosen.job)  # fails for an unknown job
        self.chosen = chosen
        self.parser = self._build(chosen, self._add_own)

    def _help(self, arguments: argparse.Namespace) -> None:
        with suppress(SystemExit):
            self.parser.parse_args([*arguments.words, "--help"])

    def _exit(self, arguments: argparse.Namespace) -> None:
        self.over = True
