"""The commands that query a running job: `qstate jobs`, `qstate states JOB`, `qstate get JOB STATE KEY...`.

Rules of this module: arguments in, client calls, text out. It parses keys from the command line and prints values; it
must not know the protocol.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from qstate.cli.arguments import add_client_tls, client_tls
from qstate.cli.tables import table
from qstate.cli.value_parts import add_part_options, value_of
from qstate.client import QueryableStateClient
from qstate.errors import ConfigError, UnknownState
from qstate.keys import ColumnType
from qstate.runtime.client.arguments import check_name, demands
from qstate.values.text_forms import column_types, parse_key, parse_namespace, printable

__all__ = ["add_query_commands", "add_query_options", "address_of", "client_of", "key_types_of"]

DEFAULT_PROXY = "localhost:9069"
DEFAULT_TIMEOUT_S = 5.0
#: The token of a protected query port. It is not an option, because every user of a host can read the options.
TOKEN_VARIABLE = "QSTATE_TOKEN"

FOUND, NOT_FOUND = 0, 1


def add_query_commands(commands: Any) -> None:
    """Add the commands to argparse's subparsers."""
    jobs = add_query_options(commands, "jobs", "list the jobs that a proxy serves")
    jobs.set_defaults(run=_jobs)
    states = add_query_options(commands, "states", "list a job's queryable states", fallback=True)
    states.add_argument("job", metavar="JOB")
    states.set_defaults(run=_states)
    get = add_query_options(commands, "get", "print the value of a key", fallback=True)
    get.add_argument("job", metavar="JOB")
    get.add_argument("state", metavar="STATE", help="the state's queryable name")
    get.add_argument("key", metavar="KEY", nargs="+", help="one for each key column; binary columns in hexadecimal")
    get.add_argument("--namespace", metavar="NAME", help="for example a window's start: JSON, or plain text")
    get.add_argument("--isolation", choices=("live", "committed"), default="live")
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
    get.set_defaults(run=_get)


def add_query_options(commands: Any, name: str, what: str, *, fallback: bool = False) -> argparse.ArgumentParser:
    """A command that asks a proxy, with the options that all of these have."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what)
    if fallback:
        parser.add_argument(
            "--fallback",
            action="append",
            default=[],
            metavar="HOST:PORT",
            help="a standby server for committed queries while the job does not answer; may be repeated",
        )
    parser.add_argument(
        "--proxy",
        action="append",
        metavar="HOST:PORT",
        help=f"a client proxy of the job (default: {DEFAULT_PROXY}); may be repeated, for others when one does not "
        f"answer; ${TOKEN_VARIABLE} has their token, if they need one",
    )
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="SECONDS", help="default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one document")
    add_client_tls(parser)
    return parser


def _jobs(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        names = sorted(client.jobs())
    print(json.dumps(names) if arguments.json else "\n".join(names))
    return FOUND


def _states(arguments: argparse.Namespace) -> int:
    with client_of(arguments) as client:
        states = sorted(client.states(arguments.job), key=lambda state: str(state["name"]))
    if arguments.json:
        print(json.dumps([dict(state) for state in states], default=list))
        return FOUND
    rows = [
        (state["name"], state["kind"], ", ".join(state["key_types"]), state["value_type"], state["serializer"])
        for state in states
    ]
    heads = ("STATE", "KIND", "KEY", "VALUE", "SERIALIZER")
    print("\n".join(table([heads, *rows])))
    return FOUND


def _get(arguments: argparse.Namespace) -> int:
    demands(arguments.min_epoch, arguments.max_staleness, None)
    check_name("state", arguments.state)
    namespace = parse_namespace(arguments.namespace)
    with client_of(arguments) as client:
        key = parse_key(arguments.key, key_types_of(client, arguments.job, arguments.state))
        wanted = {
            "min_epoch": arguments.min_epoch,
            "max_staleness_s": arguments.max_staleness,
            "wait_s": arguments.wait,
        }
        found, value = value_of(client, arguments, key, namespace, wanted)
    if arguments.json:
        print(json.dumps(printable(value)))
    elif found:
        print(value)
    return FOUND if found else NOT_FOUND


def client_of(arguments: argparse.Namespace) -> QueryableStateClient:
    """A client with the options of the command."""
    (host, port), *proxies = [address_of("--proxy", text) for text in arguments.proxy or [DEFAULT_PROXY]]
    return QueryableStateClient(
        host,
        port,
        proxies=proxies,
        timeout_s=arguments.timeout,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        tls=client_tls(arguments),
        allow_token_without_tls=arguments.allow_token_without_tls,
        direct=False,  # a connection to an owner would come too late for one request
        fallback=[address_of("--fallback", text) for text in getattr(arguments, "fallback", ())],
    )


def address_of(option: str, text: str) -> tuple[str, int]:
    """The address in an option. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{option} takes HOST:PORT, as in {DEFAULT_PROXY}, got {text!r}")
    return host.strip("[]"), int(port)


def key_types_of(client: QueryableStateClient, job: str, state: str) -> list[ColumnType]:
    """The types of a state's key columns. Raises `UnknownState`, and `ConfigError` for types of a newer version."""
    states: Mapping[str, Mapping[str, Any]] = {str(entry["name"]): entry for entry in client.states(job)}
    if state not in states:
        raise UnknownState(job=job, state=state, states=", ".join(sorted(states)))
    return column_types(states[state]["key_types"])
