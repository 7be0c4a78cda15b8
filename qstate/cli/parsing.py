"""The parser of all commands, the arguments that name a job and a state, and what was chosen before.

Rules of this module: argparse only. An error is one line that says where help is. Options have to be written in full,
so that a new option never changes what an old script means.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from qstate.cli.output.terminal import shown

__all__ = ["NOTHING_CHOSEN", "Chosen", "Parser", "add_target"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The job, and perhaps the state, that a person has chosen for the commands that follow."""

    job: str | None = None
    state: str | None = None


NOTHING_CHOSEN = Chosen()


class Parser(argparse.ArgumentParser):
    """A parser with a short usage, and errors in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return found, unknown

    def format_usage(self) -> str:
        return self._with_short_usage(super().format_usage)

    def format_help(self) -> str:
        return self._with_short_usage(super().format_help)

    def _with_short_usage(self, make: Any) -> str:
        """The options follow below, with their meaning."""
        formatter = self._get_formatter()
        formatter.add_usage(None, self._get_positional_actions(), [], "")
        self.usage = (
            formatter.format_help().strip().replace(self.prog, f"{self.prog} [OPTION ...]", 1).replace("%", "%%")
        )
        try:
            return f"{str(make()).rstrip()}\n"
        finally:
            self.usage = None

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"qstate: {shown(message)}; see: {self.prog} --help\n")


def add_target(parser: argparse.ArgumentParser, chosen: Chosen, *, state: bool = True) -> None:
    """Add the arguments JOB and STATE, unless they were chosen before."""
    names = {"job": ("JOB", "the job's name: qstate jobs lists them")}
    if state:
        names["state"] = ("STATE", "the state's queryable name: qstate states JOB lists them")
    for name, (metavar, what) in names.items():
        given = getattr(chosen, name)
        if given is None:
            parser.add_argument(name, metavar=metavar, help=what)
        else:
            parser.set_defaults(**{name: given})
