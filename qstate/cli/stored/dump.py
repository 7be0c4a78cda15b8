"""The command `qstate checkpoint dump`: prints every entry of a checkpoint directory or a savepoint.

Rules of this module: arguments in, the entries of `qstate.checkpoint.sources.entries` out, as JSON or MessagePack.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from qstate.checkpoint import StateSource, StoredOperator, open_source
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.sources.entries import (
    Element,
    Entry,
    by_name,
    current_changes,
    elements_of,
    packed_element,
    packed_entry,
    read_changes,
    read_entries,
    read_operator_states,
    states_as_of,
    stored_operator,
    without_broadcast,
)
from qstate.cli.arguments import storage_options
from qstate.cli.output.formats import JSONL, add_format
from qstate.errors import CheckpointError, ConfigError
from qstate.keys import KeyGroupRange
from qstate.values.text_forms import key_form, map_key_form, namespace_form, printable

__all__ = ["add_dump_arguments"]

#: Types whose values are JSON as they are. A float may be one that JSON lacks.
_PLAIN_TYPES = frozenset((str, int, bool, type(None)))
_FORMS: dict[str, Callable[[Any], Any]] = {"namespace": namespace_form, "key": key_form, "map_key": map_key_form}


def add_dump_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to the command, which has the location already."""
    parser.add_argument("--operator", metavar="UID", help="only this operator")
    parser.add_argument("--state", metavar="NAME", help="only this state, by its name in the program")
    parser.add_argument("--key-groups", metavar="A-B", help="only the key groups A to B, both included")
    parser.add_argument("--epoch", type=int, metavar="N", help="as of this epoch (default: the newest committed epoch)")
    add_format(parser, JSONL, "msgpack")
    parser.set_defaults(run=_dump)


def _dump(arguments: argparse.Namespace) -> None:
    source = open_source(arguments.location, storage_options(arguments))
    groups = _key_groups(arguments.key_groups, source.max_parallelism)
    uids = sorted(source.operators()) if arguments.operator is None else [arguments.operator]
    operators = [stored_operator(source, uid) for uid in uids]
    names = {str(plain.get("name")) for one in operators for plain in states_as_of(source, one, arguments.epoch)}
    # Operator state belongs to no key group, so a dump of some key groups has none.
    lists: dict[str, list[OperatorState]] = {}
    if groups is None:
        lists = {one.uid: read_operator_states(source, one, epoch=arguments.epoch) for one in operators}
    names |= {one.name for states in lists.values() for of_subtask in states for one in of_subtask}
    _check_state(names, arguments.state)
    for stored in operators:
        _dump_entries(source, stored, groups, arguments)
        _dump_elements(source.location, stored.uid, lists.get(stored.uid, ()), arguments)
    sys.stdout.flush()


def _dump_entries(
    source: StateSource, stored: StoredOperator, groups: KeyGroupRange | None, arguments: argparse.Namespace
) -> None:
    if arguments.format == JSONL:
        for entry in read_entries(source, stored.uid, epoch=arguments.epoch, key_groups=groups):
            if arguments.state in (None, entry.state):
                sys.stdout.write(json.dumps(_plain(entry)) + "\n")
        return
    schemas = by_name(states_as_of(source, stored, arguments.epoch))
    with readable(f"operator {stored.uid!r} in {source.location}"):
        changes = read_changes(source, stored, epoch=arguments.epoch, key_groups=groups)
        for change in current_changes(changes, schemas):
            if arguments.state in (None, change.state):
                sys.stdout.buffer.write(packed_entry(stored.uid, change, schemas.get(change.state, {})))


def _dump_elements(
    location: str, operator: str, states: Sequence[OperatorState], arguments: argparse.Namespace
) -> None:
    wanted = [[one for one in without_broadcast(state) if arguments.state in (None, one.name)] for state in states]
    if arguments.format == JSONL:
        for element in elements_of(location, operator, wanted):
            sys.stdout.write(json.dumps(_plain(element)) + "\n")
        return
    for subtask, state in enumerate(wanted):
        for one in state:
            for data in one.elements:
                sys.stdout.buffer.write(packed_element(operator, subtask, one, data))


def _plain(found: Entry | Element) -> dict[str, Any]:
    facts = {name: _in_json(fact, name) for name, fact in zip(found._fields[:-2], found, strict=False)}
    if facts.get("map_key", ...) is None:
        del facts["map_key"]
    return {**facts, "value" if found.decoded else "bytes": _in_json(found.value)}


def _in_json(value: Any, name: str = "value") -> Any:
    """The value in the form of this field, with a fast path for the most common types."""
    return value if type(value) in _PLAIN_TYPES else _FORMS.get(name, printable)(value)


def _key_groups(text: str | None, max_parallelism: int) -> KeyGroupRange | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        start, stop = int(first), int(last or first) + 1
    except ValueError:
        raise ConfigError(f"--key-groups takes a number or A-B, as in 0-63, got {text!r}") from None
    if not 0 <= start < stop <= max_parallelism:
        raise ConfigError(f"--key-groups takes numbers from 0 to {max_parallelism - 1}, got {text!r}")
    return KeyGroupRange(start, stop)


def _check_state(names: Collection[str], state: str | None) -> None:
    if state is not None and state not in names:
        raise CheckpointError(f"unknown state {state!r}; the states are: {', '.join(sorted(names)) or 'none'}")
