"""The command `qstate`: parses the command line, runs the command, and prints an error as one line.

Rules of this module: exit code 0 is success, 1 a negative result (a check that failed, a key without a value), 2 an
error, printed as one line on standard error. The user sees no stack trace for an error that qstate expects.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from qstate import __version__
from qstate.cli.check import add_check_command
from qstate.cli.checkpoint import add_checkpoint_commands
from qstate.cli.gateway import add_gateway_command
from qstate.cli.query import add_query_commands
from qstate.cli.scan import add_scan_command
from qstate.cli.serve import add_serve_command
from qstate.cli.token import add_token_command
from qstate.cli.top import add_top_command
from qstate.cli.watch import add_watch_command
from qstate.demo.options import DemoOptions, add_demo_arguments
from qstate.errors import QStateError
from qstate.installation import require

__all__ = ["main"]

SUCCESS, NO, ERROR = 0, 1, 2
#: The recursion limit. Values nest up to 1,024 levels, and printing takes two or three calls for each level.
DEEPEST = 5_000
#: The exit code that shells report for a command that Ctrl-C ended.
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), DEEPEST))
    try:
        return int(arguments.run(arguments))
    except QStateError as exc:
        return _fail(str(exc))
    except BrokenPipeError:  # the reader of the output has closed it: `qstate jobs | head -1`
        sys.stderr.close()
        return NO
    except OSError as exc:
        return _fail(f"{exc.strerror or exc}" + (f": {exc.filename}" if exc.filename else ""))
    except KeyboardInterrupt:
        return INTERRUPTED


def _fail(message: str) -> int:
    print(f"qstate: {' '.join(message.split())}", file=sys.stderr)
    return ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qstate", description="Queryable state for PySpark Structured Streaming.")
    parser.add_argument("--version", action="version", version=f"qstate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_check_command(commands)
    demo = commands.add_parser("demo", help="a year of flights and weather through Spark, queried live")
    add_demo_arguments(demo)
    demo.set_defaults(run=_demo)
    add_query_commands(commands)
    add_scan_command(commands)
    add_watch_command(commands)
    add_checkpoint_commands(commands)
    add_serve_command(commands)
    add_gateway_command(commands)
    add_top_command(commands)
    add_token_command(commands)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    require("demo")
    # Imported after the check: the demo needs packages that only its extra installs.
    return int(import_module("qstate.demo.main").run(DemoOptions.of(arguments)))


if __name__ == "__main__":
    sys.exit(main())
