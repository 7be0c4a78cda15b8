"""The command `qstate watch JOB STATE [KEY ...]`: prints the committed changes of a state, one a line, as they come.

Rules of this module: arguments in, client calls, lines out. It holds one batch at a time.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from qstate.cli.query import add_query_options, client_of, key_types_of
from qstate.client import ChangeBatch, QueryableStateClient, StateChange
from qstate.runtime.client.arguments import check_name
from qstate.values.text_forms import parse_key, parse_namespace, printable

__all__ = ["add_watch_command"]


def add_watch_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    watch = add_query_options(
        commands, "watch", "print the committed changes of a key or a state until Ctrl-C", fallback=True
    )
    watch.add_argument("job", metavar="JOB")
    watch.add_argument("state", metavar="STATE", help="the state's queryable name")
    watch.add_argument("key", metavar="KEY", nargs="*", help="one for each key column; without one, all keys")
    watch.add_argument("--namespace", metavar="NAME", help="only changes of this namespace: JSON, or plain text")
    begin = watch.add_mutually_exclusive_group()
    begin.add_argument("--from-epoch", type=int, metavar="EPOCH", help="begin there instead of with a snapshot")
    begin.add_argument("--token", metavar="TOKEN", help="continue where an earlier watch ended")
    watch.add_argument("--until", type=int, metavar="EPOCH", help="end when everything up to this epoch is printed")
    watch.set_defaults(run=_watch)


def _watch(arguments: argparse.Namespace) -> int:
    check_name("state", arguments.state)
    with (
        client_of(arguments) as client,
        client.subscribe(arguments.job, arguments.state, **_selection(arguments, client)) as subscription,
    ):
        for batch in subscription:
            for change in batch:
                print(_line(change, batch, arguments), flush=False)
            print(end="", flush=True)
            if arguments.until is not None and batch.complete >= arguments.until:
                break
    return 0


def _selection(arguments: argparse.Namespace, client: QueryableStateClient) -> dict[str, Any]:
    options: dict[str, Any] = {"from_epoch": arguments.from_epoch, "token": arguments.token}
    if arguments.key:
        options["key"] = parse_key(arguments.key, key_types_of(client, arguments.job, arguments.state))
    if arguments.namespace is not None:
        options["namespace"] = parse_namespace(arguments.namespace)
    return options


def _line(change: StateChange, batch: ChangeBatch, arguments: argparse.Namespace) -> str:
    kind = "snapshot" if batch.snapshot else change.kind.value
    if arguments.json:
        found = {"epoch": change.epoch, "change": kind, "key": printable(change.key)}
        found |= {"namespace": printable(change.namespace), "value": printable(change.value)}
        if change.map_key is not None:
            found["map_key"] = printable(change.map_key)
        return json.dumps({**found, "token": batch.token})
    place = [change.key, *(one for one in (change.namespace, change.map_key) if one is not None)]
    value = [] if change.value is None and kind != "put" else [change.value]
    return "\t".join(map(str, [change.epoch, kind, *place, *value]))
