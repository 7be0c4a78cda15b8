"""The command `qstate-conformance`: finds the subject that is meant, has its laws run and shows the outcome.

Rules of this module: exit code 0 means that the subject conforms, 1 that it does not, 2 that the command cannot be
carried out, said on standard error, 130 that it was interrupted. Progress goes to standard error, the report to
standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from qstate.errors import QStateError
from qstate_conformance import __version__, subjects
from qstate_conformance.laws import AREAS, find_laws
from qstate_conformance.outcomes import INTERRUPTED, USAGE
from qstate_conformance.plan import Plan
from qstate_conformance.profiles import DEFAULT_PROFILE, PROFILES
from qstate_conformance.progress import Progress
from qstate_conformance.reports import html, json, junit, text
from qstate_conformance.reports.directory import write_reports
from qstate_conformance.run import SelectionError, run
from qstate_conformance.waivers import WaiverError, read_waivers

__all__ = ["main"]

_FORESEEN = (subjects.SubjectError, SelectionError, WaiverError, json.NotAReport, QStateError, OSError)
_HELP_OF_AREAS = {
    "backend": "prove a state backend",
    "server": "prove a running server that was loaded with the fixture",
    "client": "prove a client, in any language, that is driven over its standard input and output",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    options = _parser().parse_args(arguments)
    # What `python -m` does: a package that is not installed is found where the command is given.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return int(options.execute(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: `qstate-conformance list | head -1`
        sys.stderr.close()
        return 1
    except _FORESEEN as exc:
        print(f"qstate-conformance: {exc}", file=sys.stderr)
        return USAGE


def _run(options: argparse.Namespace) -> int:
    subject, arguments = _subject(options)
    waivers = read_waivers(options.waivers) if options.waivers else ()
    plan = Plan(
        subject,
        tuple(options.select),
        options.profile,
        options.seed,
        waivers,
        arguments,
        options.name,
        options.maxfail,
    )
    progress = Progress(sys.stderr)
    outcome = run(plan, progress)
    progress.finished()
    print(text.render(outcome))
    if options.report:
        written = write_reports([outcome], options.report)
        print(f"reports: {', '.join(map(str, written))}")
    return outcome.exit_code


def _subject(options: argparse.Namespace) -> tuple[subjects.Subject, tuple[str, ...]]:
    """The subject, and the arguments that belong to it beside its name."""
    if options.area == "backend":
        pairs = tuple(word for pair in options.option for word in ("--option", pair))
        return subjects.backend_subject(options.subject, subjects.parse_options(options.option)), pairs
    if options.area == "server":
        token = subjects.read_token(options.token_file) if options.token_file else None
        return subjects.server_subject(options.subject, token), _token_arguments(options)
    return subjects.client_subject(options.subject), ()


def _token_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    return ("--token-file", str(options.token_file)) if options.token_file else ()


def _list(options: argparse.Namespace) -> int:
    laws = [law for area in options.areas or AREAS for law in find_laws(area)]
    if options.json:
        print(json.render_laws(laws), end="")
        return 0
    for law in laws:
        print(f"{law.id} [{', '.join(law.requirements)}] {law.text}")
    return 0


def _report(options: argparse.Namespace) -> int:
    outcomes = [outcome for path in options.files for outcome in json.read(path.read_text(encoding="utf-8"))]
    wanted = {options.html: html.render, options.junit: junit.render, options.json: json.render}
    for path, render in wanted.items():
        if path is not None:
            path.write_text(render(outcomes), encoding="utf-8", errors="backslashreplace")
    if set(wanted) == {None}:
        print("\n\n".join(text.render(outcome) for outcome in outcomes))
    return 0


def _fixture(options: argparse.Namespace) -> int:
    # By name, here: what is imported before the laws run keeps assertions that say nothing.
    print(import_module("qstate_conformance.server.fixture").as_json())
    return 0


def _serve(options: argparse.Namespace) -> int:
    token = subjects.read_token(options.token_file) if options.token_file else None
    reference_server = import_module("qstate_conformance.server.reference_server")
    reference_server.serve(options.backend, bind=options.bind, port=options.port, token=token)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="qstate-conformance",
        description="Proves a backend, a server or a client of qstate against what its documentation promises.",
        epilog="Exit codes: 0 it conforms, 1 it does not, 2 the command cannot be carried out.",
    )
    parser.add_argument("--version", action="version", version=f"qstate-conformance {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for area in AREAS:
        _add_area(commands.add_parser(area, help=_HELP_OF_AREAS[area]), area)
    listing = commands.add_parser("list", help="every law, with its id and the rules that it checks; runs nothing")
    listing.add_argument("areas", nargs="*", metavar="AREA", choices=[*AREAS, []], help=", ".join(AREAS))
    listing.add_argument("--json", action="store_true", help="as JSON, with all that is known of each law")
    listing.set_defaults(execute=_list)
    _add_report(commands.add_parser("report", help="make reports from JSON reports, several subjects in one"))
    printing = commands.add_parser("fixture", help="print the state that a server must hold for the server laws")
    printing.set_defaults(execute=_fixture)
    _add_serve(commands.add_parser("serve", help="serve the fixture with qstate's own server"))
    return parser


def _add_area(command: argparse.ArgumentParser, area: str) -> None:
    if area == "backend":
        command.add_argument("subject", metavar="NAME", help="heap, rocksdb, a registered name, or module:factory")
        command.add_argument(
            "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend"
        )
    elif area == "server":
        command.add_argument("subject", metavar="HOST:PORT", help="the client proxy's address")
        command.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token that the server wants")
    else:
        command.add_argument("subject", nargs="+", metavar="COMMAND", help="after --: what starts the client's driver")
    command.add_argument(
        "--select", action="append", default=[], metavar="LAW", help="a law's id, a glob over ids, or a rule's id"
    )
    command.add_argument("--profile", choices=list(PROFILES), default=DEFAULT_PROFILE, help="how hard to try")
    command.add_argument("--seed", type=int, default=0, help="the same seed gives the same examples (0)")
    command.add_argument(
        "--maxfail", type=_positive, metavar="N", help="stop when N laws have failed; the run is then a partial one"
    )
    command.add_argument("--waivers", type=Path, metavar="FILE", help="laws that need not hold, with reasons (TOML)")
    command.add_argument("--report", type=Path, metavar="DIR", help="where text, JSON, JUnit and HTML reports go")
    command.add_argument("--name", default="", help="how the reports call the subject, in place of what was given")
    command.set_defaults(execute=_run, area=area)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON reports")
    for form in ("html", "junit", "json"):
        command.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write one {form.upper()} report of all")
    command.set_defaults(execute=_report)


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--backend", default="heap", metavar="NAME", help="holds the state (heap)")
    command.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="where to listen (127.0.0.1)")
    command.add_argument("--port", type=int, default=0, help="the proxy's port; 0 is any free one (0)")
    command.add_argument("--token-file", type=Path, metavar="FILE", help="holds the token that clients must have")
    command.set_defaults(execute=_serve)
