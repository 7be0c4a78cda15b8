"""The commands `qstate jobs`, `qstate states JOB` and `qstate describe JOB STATE`: what there is to query.

Rules of this module: arguments in, client calls, text out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from qstate.cli.connection import add_connection_options, client_of
from qstate.cli.output.formats import CSV, JSON, JSONL, TABLE, Printer, add_format, text_of
from qstate.cli.output.tables import table
from qstate.cli.output.terminal import say
from qstate.cli.parsing import Chosen, add_target
from qstate.cli.queries.get import live_or_committed
from qstate.client import QueryableStateClient
from qstate.errors import Forbidden
from qstate.keys import KeyGroupRange
from qstate.runtime.client.arguments import check_name

__all__ = ["add_listing_commands"]

COLUMNS = ("name", "kind", "key_types", "namespace_types", "map_key_type", "value_type", "serializer")


def add_listing_commands(commands: Any, chosen: Chosen) -> None:
    """Add the commands to argparse's subparsers."""
    jobs = commands.add_parser("jobs", help="list the jobs that a proxy serves")
    jobs.set_defaults(run=_jobs)
    states = commands.add_parser("states", help="list a job's queryable states")
    add_target(states, chosen, state=False)
    states.set_defaults(run=_states)
    for parser in (jobs, states):
        add_format(parser, TABLE, JSON, JSONL, CSV)
        add_connection_options(parser)
    describe = commands.add_parser(
        "describe", help="print a state's types, how many keys it has, and where its key groups live"
    )
    add_target(describe, chosen)
    describe.add_argument("--no-count", action="store_true", help="do not count the keys, which reads all of them")
    add_format(describe, TABLE, JSON)
    add_connection_options(describe)
    describe.set_defaults(run=_describe)


def _jobs(arguments: argparse.Namespace) -> None:
    with client_of(arguments) as client:
        names = sorted(client.jobs())
    with Printer(arguments.format, ["job"]) as printer:
        for name in names:
            printer.print({"job": name})


def _states(arguments: argparse.Namespace) -> None:
    with client_of(arguments) as client:
        states = sorted(client.states(arguments.job), key=lambda state: str(state["name"]))
    columns = COLUMNS if arguments.format in (TABLE, CSV) else (*COLUMNS, "capabilities")
    shown = dict.fromkeys(("key_types", "namespace_types"), _types)
    with Printer(arguments.format, columns, shown=shown) as printer:
        for state in states:
            printer.print(_record(state, columns))


def _record(state: Mapping[str, Any], columns: tuple[str, ...]) -> Mapping[str, Any]:
    """The columns, and for readers of JSON whatever else the server says of the state."""
    return {**dict.fromkeys(columns), **{name: _plain(value) for name, value in state.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _types(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) and value else text_of(None)


def _describe(arguments: argparse.Namespace) -> None:
    check_name("state", arguments.state)
    with client_of(arguments) as client:
        found = _description(client, arguments)
    if arguments.format == JSON:
        print(json.dumps(found))
        return
    state = found["state"]
    say(f"state {state['name']} of job {found['job']}")
    keys = "not counted" if found["keys"] is None else f"{found['keys']:,}"
    rows = [
        ("kind", state["kind"]),
        ("key", _types(state["key_types"])),
        ("namespace", _types(state["namespace_types"])),
        *([("map key", state["map_key_type"])] if state["map_key_type"] is not None else []),
        ("value", text_of(state["value_type"])),
        ("serializer", f"{state['serializer']}, version {state.get('serializer_version', 0)}"),
        ("supports", _types(state["capabilities"])),
        ("keys", keys),
        ("key groups", found["key_groups"]),
    ]
    for line in table(rows, indent="  "):
        print(line)
    say()
    owners = [(_groups(owner["key_groups"]), owner["address"] or "no owner: it restarts") for owner in found["owners"]]
    for line in table([("KEY GROUPS", "STATE SERVER"), *owners]):
        print(line)


def _count(client: QueryableStateClient, job: str, state: str) -> int | None:
    """How many keys there are, None for a client that may not read them."""
    try:
        return live_or_committed(lambda isolation: client.count(job, state, isolation=isolation))
    except Forbidden:
        return None


def _description(client: QueryableStateClient, arguments: argparse.Namespace) -> dict[str, Any]:
    location = client.locate(arguments.job, arguments.state)
    count = None if arguments.no_count else _count(client, arguments.job, arguments.state)
    owners: list[tuple[KeyGroupRange, str | None]] = [
        (owner.key_groups, f"{owner.host}:{owner.port}") for owner in location.owners
    ]
    owners += [(gap, None) for gap in location.gaps()]
    return {
        "job": arguments.job,
        "state": _record(location.state, (*COLUMNS, "capabilities")),
        "keys": count,
        "key_groups": location.max_parallelism,
        "owners": [
            {"key_groups": [groups.start, groups.stop - 1], "address": address}
            for groups, address in sorted(owners, key=lambda one: one[0].start)
        ],
    }


def _groups(found: list[int]) -> str:
    first, last = found
    return str(first) if first == last else f"{first}-{last}"
