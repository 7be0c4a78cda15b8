"""The command `qstate scan JOB STATE`: prints the keys of a state and their values, one a line, as they come.

Rules of this module: arguments in, client calls, lines out. It holds one page at a time, however large the state is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from qstate.cli.query import add_query_options, client_of, key_types_of
from qstate.client import QueryableStateClient
from qstate.errors import ConfigError
from qstate.keys import Column, ColumnType
from qstate.runtime.client.arguments import check_name
from qstate.runtime.client.scanning import ScannedEntry
from qstate.values.text_forms import parse_columns, parse_namespace, printable

__all__ = ["add_scan_command"]


def add_scan_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    scan = add_query_options(commands, "scan", "print the keys of a state and their values, one a line", fallback=True)
    scan.add_argument("job", metavar="JOB")
    scan.add_argument("state", metavar="STATE", help="the state's queryable name")
    scan.add_argument("column", metavar="COLUMN", nargs="*", help="the first key columns of the keys to print")
    scan.add_argument("--begins", metavar="TEXT", help="print keys whose first column begins with this")
    scan.add_argument("--namespace", metavar="NAME", help="print keys of this namespace only: JSON, or plain text")
    scan.add_argument("--no-namespace", action="store_true", help="print keys of the void namespace only")
    scan.add_argument("--isolation", choices=("live", "committed"), default="live")
    scan.add_argument("--limit", type=int, metavar="N", help="print at most N keys")
    shown = scan.add_mutually_exclusive_group()
    shown.add_argument("--keys", action="store_true", help="print the keys only")
    shown.add_argument("--count", action="store_true", help="print how many keys there are")
    scan.set_defaults(run=_scan)


def _scan(arguments: argparse.Namespace) -> int:
    check_name("state", arguments.state)
    with client_of(arguments) as client:
        options = _selection(arguments, client)
        if arguments.count:
            if arguments.limit is not None:
                raise ConfigError("--count counts all keys: leave --limit out")
            print(client.count(arguments.job, arguments.state, isolation=arguments.isolation, **options))
            return 0
        scan = client.scan(
            arguments.job,
            arguments.state,
            isolation=arguments.isolation,
            limit=arguments.limit,
            values=not arguments.keys,
            **options,
        )
        with scan:
            for entry in islice(scan, arguments.limit):
                print(_line(entry, arguments), flush=False)
    return 0


def _selection(arguments: argparse.Namespace, client: QueryableStateClient) -> Mapping[str, Any]:
    options: dict[str, Any] = {}
    if arguments.no_namespace:
        options["namespace"] = None
    elif arguments.namespace is not None:
        options["namespace"] = parse_namespace(arguments.namespace)
    if arguments.begins is not None and arguments.column:
        raise ConfigError("give key columns or --begins, not both")
    if arguments.column or arguments.begins is not None:
        types = key_types_of(client, arguments.job, arguments.state)
        options["prefix"] = _prefix(arguments, types)
    return options


def _prefix(arguments: argparse.Namespace, types: list[ColumnType]) -> str | bytes | tuple[Column, ...]:
    if arguments.begins is None:
        return parse_columns(arguments.column, types)
    (found,) = parse_columns([arguments.begins], types)
    if not isinstance(found, str | bytes):
        raise ConfigError(f"--begins takes text or hexadecimal digits, the first key column is {types[0].value}")
    return found


def _line(entry: ScannedEntry[Any], arguments: argparse.Namespace) -> str:
    value = None if entry.view is None else entry.view.contents()
    if arguments.json:
        found: dict[str, Any] = {"key": printable(entry.key), "namespace": printable(entry.namespace)}
        if not arguments.keys:
            found |= {"value": printable(value), "epoch": entry.view.epoch}
        return json.dumps(found)
    place = [entry.key] if entry.namespace is None else [entry.key, entry.namespace]
    return "\t".join(map(str, place if arguments.keys else [*place, value]))
