"""The command `qstate get JOB STATE KEY...`: prints the value of a key, or a part of it.

Rules of this module: arguments in, client calls, text out. It must not know the protocol.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from qstate.cli.connection import add_connection_options, client_of
from qstate.cli.output.formats import CSV, JSON, JSONL, TABLE, Printer, add_format, print_value
from qstate.cli.parsing import Chosen, add_target
from qstate.cli.queries.value_parts import add_part_options, value_of
from qstate.client import QueryableStateClient
from qstate.errors import UnknownState, UnsupportedQuery
from qstate.runtime.client.arguments import check_name, demands
from qstate.values.text_forms import StateTypes, parse_key, parse_namespace, printable

__all__ = ["add_get_command", "add_isolation", "listed", "live_or_committed", "state_types_of"]

Result = TypeVar("Result")

FOUND, NOT_FOUND = 0, 1


def add_get_command(commands: Any, chosen: Chosen) -> None:
    """Add the command to argparse's subparsers."""
    get = commands.add_parser("get", help="print the value of a key")
    add_target(get, chosen)
    get.add_argument("key", metavar="KEY", nargs="+", help="one for each key column; binary columns in hexadecimal")
    get.add_argument("--namespace", metavar="NAME", help="for example a window's start: JSON, or plain text")
    add_isolation(get)
    get.add_argument("--min-epoch", type=int, metavar="EPOCH", help="wait for an answer of this epoch or later")
    get.add_argument(
        "--max-staleness",
        type=float,
        metavar="SECONDS",
        help="wait for an answer with everything that was committed more than SECONDS ago",
    )
    get.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="how long to try again when the get fails for a reason that may pass; default: until --timeout",
    )
    add_part_options(get)
    add_format(get, TABLE, JSON, JSONL, CSV)
    add_connection_options(get)
    get.set_defaults(run=_get)


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add the option of which state to read."""
    parser.add_argument(
        "--isolation",
        choices=("live", "committed"),
        default="live",
        help="the state of the running epoch, or only what is committed (default: %(default)s)",
    )


def _get(arguments: argparse.Namespace) -> int:
    demands(arguments.min_epoch, arguments.max_staleness, None)
    check_name("state", arguments.state)
    with client_of(arguments) as client:
        types = state_types_of(client, arguments.job, arguments.state)
        key, namespace = parse_key(arguments.key, types.keys), parse_namespace(arguments.namespace, types.namespaces)
        wanted = {
            "min_epoch": arguments.min_epoch,
            "max_staleness_s": arguments.max_staleness,
            "wait_s": arguments.wait,
            "namespace": namespace,
        }
        found, value = value_of(client, arguments, key, types, wanted)
    if found or arguments.format in (JSON, JSONL):
        print_value(arguments.format, printable(value))
    elif arguments.format == CSV:
        with Printer(CSV, ["value"]):
            pass
    return FOUND if found else NOT_FOUND


def state_types_of(client: QueryableStateClient, job: str, state: str) -> StateTypes:
    """The types of a state's keys and namespaces. Raises what `listed` raises, and `ConfigError` for newer types."""
    return StateTypes.of(listed(client, job, state))


def listed(client: QueryableStateClient, job: str, state: str) -> Mapping[str, Any]:
    """A state's entry in the list of states. Raises `UnknownState`, and `Forbidden` if this client may not see it."""
    states: Mapping[str, Mapping[str, Any]] = {str(entry["name"]): entry for entry in client.states(job)}
    if state not in states:
        with suppress(UnknownState):
            client.locate(job, state)  # the list has no state that is forbidden
        raise UnknownState(job=job, state=state, states=", ".join(sorted(states)))
    return states[state]


def live_or_committed(ask: Callable[[str], Result]) -> Result:
    """What `ask(isolation)` gives: about live state, or of a standby, which has none, about committed state."""
    try:
        return ask("live")
    except UnsupportedQuery:
        return ask("committed")
