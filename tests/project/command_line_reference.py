"""Makes the last part of docs/reference/command-line.md, the arguments of every command, from the parsers.

`PYTHONPATH=. python tests/project/command_line_reference.py` writes the page; a test compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import wrap

from qstate.cli import main as cli
from qstate.cli.profiles import SETTINGS
from tests.project.documentation import ROOT

PAGE = ROOT / "docs/reference/command-line.md"
HEAD = "## All arguments\n"
#: The demo's options are in its own --help.
LEFT_OUT = ("demo",)
CONNECTION = {f"--{name.replace('_', '-')}" for name in SETTINGS if name != "token"} | {"--profile"}


def render() -> str:
    """The page: what is written by hand as it is, and the arguments from the parsers."""
    written = PAGE.read_text().partition(HEAD)[0]
    return written + HEAD + "".join(f"{line}\n" for line in _lines())


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Each command with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                if any(isinstance(one, argparse._SubParsersAction) for one in command._actions):
                    yield from commands(command)
                elif name in helps and name not in LEFT_OUT:
                    yield command, helps[name]


def _lines() -> Iterator[str]:
    yield ""
    yield "This part is made from the parsers. `qstate COMMAND --help` prints the same."
    connecting = None
    for command, what in commands(cli._parser()):
        yield ""
        yield f"### `{command.prog}`"
        yield ""
        connects = any(action.option_strings == ["--profile"] for action in command._actions)
        more = (
            f". It has the options of [connections](#options-of-connections){_exceptions(command)}" if connects else ""
        )
        yield from wrap(f"`{_usage(command)}`: {what}{more}.", 120, break_long_words=False, break_on_hyphens=False)
        yield from _table(
            action
            for action in command._actions
            if action.dest != "help" and not (connects and CONNECTION.intersection(action.option_strings))
        )
        connecting = connecting or (command if connects else None)
    assert connecting is not None
    yield ""
    yield "### Options of connections"
    yield from _table(one for one in connecting._actions if CONNECTION.intersection(one.option_strings))


def _exceptions(command: argparse.ArgumentParser) -> str:
    missing = sorted(CONNECTION - {option for action in command._actions for option in action.option_strings})
    return f", except {' and '.join(f'`{one}`' for one in missing)}" if missing else ""


def _table(actions: Iterator[argparse.Action]) -> Iterator[str]:
    found = list(actions)
    if found:
        yield ""
        yield "| argument | |"
        yield "|---|---|"
    for action in found:
        what = ((action.help or "") % {"default": action.default}).replace("|", "\\|")
        yield f"| `{_form(action)}` | {what} |"


def _form(action: argparse.Action) -> str:
    choices = " or ".join(map(str, action.choices)) if action.choices else ""
    value = choices or str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return value
    return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {value}"


def _usage(command: argparse.ArgumentParser) -> str:
    return " ".join(command.format_usage().removeprefix("usage: ").split())


if __name__ == "__main__":
    PAGE.write_text(render())
