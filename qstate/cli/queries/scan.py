"""The command `qstate scan JOB STATE`: prints the keys of a state and their values, one a line, as they come.

Rules of this module: arguments in, client calls, lines out. It holds one page at a time, however large the state is.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any

from qstate.cli.connection import add_connection_options, client_of
from qstate.cli.output.formats import CSV, JSON, JSONL, TABLE, Printer, add_format, text_of
from qstate.cli.output.progress import shown_count
from qstate.cli.parsing import Chosen, add_target
from qstate.cli.queries.get import add_isolation, state_types_of
from qstate.client import QueryableStateClient
from qstate.errors import ConfigError
from qstate.keys import Column, ColumnType
from qstate.runtime.client.arguments import check_name
from qstate.runtime.client.scanning import ScannedEntry
from qstate.values.text_forms import key_form, namespace_form, parse_columns, parse_namespace, printable

__all__ = ["add_scan_command", "typed_key"]


def add_scan_command(commands: Any, chosen: Chosen) -> None:
    """Add the command to argparse's subparsers."""
    scan = commands.add_parser("scan", help="print the keys of a state and their values, one a line")
    add_target(scan, chosen)
    scan.add_argument("column", metavar="COLUMN", nargs="*", help="the first key columns of the keys to print")
    scan.add_argument("--begins", metavar="TEXT", help="print keys whose first column begins with this")
    namespace = scan.add_mutually_exclusive_group()
    namespace.add_argument("--namespace", metavar="NAME", help="print keys of this namespace only: JSON, or plain text")
    namespace.add_argument("--no-namespace", action="store_true", help="print keys of the void namespace only")
    add_isolation(scan)
    scan.add_argument("--limit", type=int, metavar="N", help="print at most N keys")
    shown = scan.add_mutually_exclusive_group()
    shown.add_argument("--keys", action="store_true", help="print the keys only")
    shown.add_argument("--count", action="store_true", help="print how many keys there are")
    add_format(scan, TABLE, JSON, JSONL, CSV)
    add_connection_options(scan)
    scan.set_defaults(run=_scan)


def _scan(arguments: argparse.Namespace) -> None:
    check_name("state", arguments.state)
    with client_of(arguments) as client:
        options = _selection(arguments, client)
        if arguments.count:
            if arguments.limit is not None:
                raise ConfigError("--count counts all keys: leave --limit out")
            print(client.count(arguments.job, arguments.state, isolation=arguments.isolation, **options))
            return
        scan = client.scan(
            arguments.job,
            arguments.state,
            isolation=arguments.isolation,
            limit=arguments.limit,
            values=not arguments.keys,
            **options,
        )
        columns = ("key", "namespace") if arguments.keys else ("key", "namespace", "epoch", "value")
        # Where the keys go to a file or a program, a person at the terminal sees how far it is.
        progress = nullcontext(lambda _: None) if sys.stdout.isatty() else shown_count("keys")
        with scan, progress as count, Printer(arguments.format, columns, shown={"key": typed_key}) as printer:
            for number, entry in enumerate(islice(scan, arguments.limit), 1):
                printer.print(_record(entry, arguments))
                count(number)


def _selection(arguments: argparse.Namespace, client: QueryableStateClient) -> Mapping[str, Any]:
    options: dict[str, Any] = {}
    if arguments.begins is not None and arguments.column:
        raise ConfigError("give key columns or --begins, not both")
    if arguments.no_namespace:
        options["namespace"] = None
    if arguments.column or arguments.begins is not None or arguments.namespace is not None:
        types = state_types_of(client, arguments.job, arguments.state)
        if arguments.namespace is not None:
            options["namespace"] = parse_namespace(arguments.namespace, types.namespaces)
        if arguments.column or arguments.begins is not None:
            options["prefix"] = _prefix(arguments, types.keys)
    return options


def _prefix(arguments: argparse.Namespace, types: list[ColumnType]) -> str | bytes | tuple[Column, ...]:
    if arguments.begins is None:
        return parse_columns(arguments.column, types)
    (found,) = parse_columns([arguments.begins], types)
    if not isinstance(found, str | bytes):
        raise ConfigError(f"--begins takes text or hexadecimal digits, the first key column is {types[0].value}")
    return found


def _record(entry: ScannedEntry[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    found = {"key": key_form(entry.key), "namespace": namespace_form(entry.namespace)}
    if not arguments.keys:
        found |= {"epoch": entry.view.epoch, "value": printable(entry.view.contents())}
    return found


def typed_key(key: Any) -> str:
    """A key as one types it for `get`."""
    return " ".join(shlex.quote(text_of(column)) for column in key) if isinstance(key, list) else text_of(key)
