"""The types of a state's answers, in its description: for readers that make tables of them.

Rules of this module: descriptors in, text out, and back. A description is from a peer, so what is read of it is checked
and bounded; a reader that finds nothing it knows takes the values for `object`.

    value_schema      the type of a value, of a list's element, of a map's value. Not for an aggregating state: the type
                      of the function's result is not stored, so a standby could not tell it
    map_key_schema    the type of a map's keys

Both are JSON of the plain data of `qstate.values.value_types`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qstate.descriptors import AggregatingStateDescriptor, MapStateDescriptor, StateDescriptor
from qstate.errors import CheckpointError
from qstate.values.value_types import OBJECT, ValueType, type_from_plain, value_type_of

__all__ = ["MAP_KEY_SCHEMA", "VALUE_SCHEMA", "answer_schemas", "described_type"]

VALUE_SCHEMA, MAP_KEY_SCHEMA = "value_schema", "map_key_schema"
#: The longest text: a description of a state shall not fill a frame.
MOST_CHARACTERS = 65_536


def answer_schemas(descriptor: StateDescriptor) -> dict[str, str]:
    """The names that a description has beside the required ones. A type that is too long is left out."""
    found = {}
    if not isinstance(descriptor, AggregatingStateDescriptor):
        found[VALUE_SCHEMA] = _text(value_type_of(descriptor.value_type))
    if isinstance(descriptor, MapStateDescriptor):
        found[MAP_KEY_SCHEMA] = _text(value_type_of(descriptor.map_key_type))
    return {name: text for name, text in found.items() if len(text) <= MOST_CHARACTERS}


def described_type(description: Mapping[str, Any], name: str) -> ValueType:
    """The type that a description has by this name; `object` when it has none that this version knows."""
    text = description.get(name)
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        return OBJECT
    try:
        return type_from_plain(json.loads(text))
    except (ValueError, RecursionError, CheckpointError):
        return OBJECT


def _text(kind: ValueType) -> str:
    return json.dumps(kind.to_plain(), separators=(",", ":"))
