"""The command `qstate`: parses the command line, runs the command, and prints an error as one line.

Rules of this module: exit code 0 is success, 1 a negative result (a check that failed, a key without a value), 2 an
error, printed as one line on standard error. A command returns its code, and None is success. The user sees no stack
trace for an error that qstate expects. A command that Ctrl-C or a closed pipe ends is ended by that signal, so that a
script that runs it ends, too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from qstate import __version__
from qstate.cli.check import add_check_command
from qstate.cli.completion.command import ASKED, add_completion_command, print_candidates
from qstate.cli.gateway import add_gateway_command
from qstate.cli.output.terminal import RED, shown, styled
from qstate.cli.parsing import NOTHING_CHOSEN, Chosen, Parser
from qstate.cli.queries.get import add_get_command
from qstate.cli.queries.listings import add_listing_commands
from qstate.cli.queries.scan import add_scan_command
from qstate.cli.queries.watch import add_watch_command
from qstate.cli.serve import add_serve_command
from qstate.cli.shell.command import add_shell_command
from qstate.cli.stored.checkpoint import add_checkpoint_commands
from qstate.cli.token import add_token_command
from qstate.cli.top import add_top_command
from qstate.demo.options import DemoOptions, add_demo_arguments
from qstate.errors import QStateError
from qstate.installation import require

__all__ = ["main", "program"]

SUCCESS, NO, ERROR = 0, 1, 2
#: The recursion limit. Values nest up to 1,024 levels, and printing takes two or three calls for each level.
DEEPEST = 5_000
#: The exit codes that shells report for a command that one of these signals ended.
INTERRUPTED, CLOSED_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE


def program() -> NoReturn:
    """Run the command line as a program: ends the process."""
    code = main()
    if code == INTERRUPTED:
        sys.excepthook = lambda *_: None  # Python ends by the signal, after all that is to run at its exit
        raise KeyboardInterrupt
    if code == CLOSED_PIPE:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # no value may fail because the terminal lacks its characters
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [ASKED]:
        print_candidates(_parser(), words[1:])
        return SUCCESS
    arguments = _parser().parse_args(words)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST))
    return run(arguments)


def _open_closed_streams() -> None:
    """Open those of the standard streams that the caller has closed: `print` would write errors to the output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for the life of the process


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was parsed, and print its error. Returns the exit code."""
    command: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        code = command(arguments)
        sys.stdout.flush()
        return SUCCESS if code is None else code
    except QStateError as exc:
        return _fail(str(exc))
    except BrokenPipeError:  # the reader of the output has closed it: `qstate jobs | head -1`
        _drop_output()
        return CLOSED_PIPE
    except OSError as exc:
        try:
            sys.stdout.flush()
        except OSError:  # such as of a full disk: Python would try again at its end, and exit with 120
            _drop_output()
        return _fail(f"{exc.strerror or exc}" + (f": {exc.filename}" if exc.filename else ""))
    except KeyboardInterrupt:
        return INTERRUPTED


def _drop_output() -> None:
    """Let what is still in the buffer of the standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    name = styled("qstate:", RED, sys.stderr)
    print(f"{name} {shown(' '.join(message.split()))}", file=sys.stderr)
    return ERROR


def _parser(chosen: Chosen = NOTHING_CHOSEN, of_shell: Callable[[Any], None] | None = None) -> Parser:
    """The parser of all commands; `of_shell` adds those of the shell, inside of which are no servers."""
    parser = Parser(
        prog="qstate",
        description="Queryable state for PySpark Structured Streaming.",
        epilog="'qstate COMMAND --help' has the arguments of a command.",
    )
    parser.add_argument("--version", action="version", version=f"qstate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_listing_commands(commands, chosen)
    add_get_command(commands, chosen)
    add_scan_command(commands, chosen)
    add_watch_command(commands, chosen)
    add_top_command(commands)
    add_checkpoint_commands(commands)
    add_token_command(commands)
    add_check_command(commands)
    if of_shell is not None:
        of_shell(commands)
        return parser
    add_shell_command(commands, _parser, run)
    add_serve_command(commands)
    add_gateway_command(commands)
    add_completion_command(commands)
    demo = commands.add_parser("demo", help="a year of flights and weather through Spark, queried live")
    add_demo_arguments(demo)
    demo.set_defaults(run=_demo)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    require("demo")
    # Imported after the check: the demo needs packages that only its extra installs.
    return int(import_module("qstate.demo.main").run(DemoOptions.of(arguments)))


if __name__ == "__main__":
    program()
