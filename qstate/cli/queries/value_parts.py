"""The options of `qstate get` that read a part of a value, or a large value in pieces.

Rules of this module: as in `query`, which has the command.
"""

from __future__ import annotations

import argparse
from typing import Any

from qstate.client import QueryableStateClient
from qstate.errors import ConfigError
from qstate.keys import Key
from qstate.values.text_forms import StateTypes, parse_namespace

__all__ = ["add_part_options", "value_of"]


def add_part_options(get: argparse.ArgumentParser) -> None:
    """Add the options to the command."""
    parts = get.add_mutually_exclusive_group()
    parts.add_argument(
        "--entry",
        action="append",
        metavar="MAP_KEY",
        help="only this entry of a map: JSON, or plain text; may be repeated",
    )
    parts.add_argument(
        "--range", metavar="START:STOP", help="only these elements of a list: from the position START, without STOP"
    )
    parts.add_argument("--size", action="store_true", help="only the number of elements or entries")
    parts.add_argument("--large", action="store_true", help="read a value that is larger than a frame in pieces")


def value_of(
    client: QueryableStateClient, arguments: argparse.Namespace, key: Key, types: StateTypes, demands: Any
) -> tuple[bool, Any]:
    """Whether there is a value or a part of it, and its contents."""
    names = (arguments.job, arguments.state, key)
    demands = {**demands, "isolation": arguments.isolation}
    if arguments.size:
        return True, client.get_size(*names, **demands)
    view: Any
    if arguments.entry:
        named = (parse_namespace(text, types.map_keys, "map key") for text in arguments.entry)
        map_keys: list[Any] = list(named)  # the client refuses null
        view = client.get_entries(*names, map_keys, **demands)
    elif arguments.range is not None:
        start, stop = _positions(arguments.range)
        view = client.get_slice(*names, start=start, stop=stop, **demands)
    else:
        get = client.get_large if arguments.large else client.get
        view = get(*names, **demands)
    return view is not None, None if view is None else view.contents()


def _positions(text: str) -> tuple[int, int | None]:
    start, colon, stop = text.partition(":")
    if not colon or not (start or "0").isdecimal() or not (stop or "0").isdecimal():
        raise ConfigError(f"--range takes START:STOP, positions in the list from 0, as in 0:10, got {text!r}")
    return int(start or 0), int(stop) if stop else None
