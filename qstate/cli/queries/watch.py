"""The command `qstate watch JOB STATE [KEY ...]`: prints the committed changes of a state, one a line, as they come.

Rules of this module: arguments in, client calls, lines out. It holds one batch at a time.
"""

from __future__ import annotations

import argparse
from typing import Any

from qstate.cli.connection import add_connection_options, client_of
from qstate.cli.output.formats import CSV, JSONL, TABLE, Printer, add_format
from qstate.cli.output.terminal import GREEN, RED
from qstate.cli.parsing import Chosen, add_target
from qstate.cli.queries.get import state_types_of
from qstate.cli.queries.scan import typed_key
from qstate.client import ChangeBatch, QueryableStateClient, StateChange
from qstate.runtime.client.arguments import check_name
from qstate.values.text_forms import key_form, map_key_form, namespace_form, parse_key, parse_namespace, printable

__all__ = ["add_watch_command"]

COLUMNS = ("epoch", "change", "key", "namespace", "map_key", "value")
_STYLES = {"put": GREEN, "put_entry": GREEN, "add": GREEN, "delete": RED, "remove_entry": RED}


def add_watch_command(commands: Any, chosen: Chosen) -> None:
    """Add the command to argparse's subparsers."""
    watch = commands.add_parser("watch", help="print the committed changes of a key or a state until Ctrl-C")
    add_target(watch, chosen)
    watch.add_argument("key", metavar="KEY", nargs="*", help="one for each key column; without one, all keys")
    watch.add_argument("--namespace", metavar="NAME", help="only changes of this namespace: JSON, or plain text")
    begin = watch.add_mutually_exclusive_group()
    begin.add_argument("--from-epoch", type=int, metavar="EPOCH", help="begin there instead of with a snapshot")
    begin.add_argument("--token", metavar="TOKEN", help="continue where an earlier watch ended")
    watch.add_argument("--until", type=int, metavar="EPOCH", help="end when everything up to this epoch is printed")
    add_format(watch, TABLE, JSONL, CSV)
    add_connection_options(watch)
    watch.set_defaults(run=_watch)


def _watch(arguments: argparse.Namespace) -> None:
    check_name("state", arguments.state)
    columns = COLUMNS if arguments.format == TABLE else (*COLUMNS, "token")
    with (
        client_of(arguments) as client,
        client.subscribe(arguments.job, arguments.state, **_selection(arguments, client)) as subscription,
        Printer(arguments.format, columns, shown={"key": typed_key}, style=_style) as printer,
    ):
        for batch in subscription:
            for change in batch:
                printer.print(_record(change, batch))
            printer.flush()
            if arguments.until is not None and batch.complete >= arguments.until:
                break


def _style(cell: str, column: str) -> str:
    return _STYLES.get(cell, "") if column == "change" else ""


def _selection(arguments: argparse.Namespace, client: QueryableStateClient) -> dict[str, Any]:
    options: dict[str, Any] = {"from_epoch": arguments.from_epoch, "token": arguments.token}
    if arguments.key or arguments.namespace is not None:
        types = state_types_of(client, arguments.job, arguments.state)
        if arguments.key:
            options["key"] = parse_key(arguments.key, types.keys)
        if arguments.namespace is not None:
            options["namespace"] = parse_namespace(arguments.namespace, types.namespaces)
    return options


def _record(change: StateChange, batch: ChangeBatch) -> dict[str, Any]:
    return {
        "epoch": change.epoch,
        "change": "snapshot" if batch.snapshot else change.kind.value,
        "key": key_form(change.key),
        "namespace": namespace_form(change.namespace),
        "map_key": map_key_form(change.map_key),
        "value": printable(change.value),
        "token": batch.token,
    }
