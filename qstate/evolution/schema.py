"""The schema of one state: the facts of its descriptor as plain data, which is stored beside the state.

Rules of this module: descriptors in, plain data and text out. As plain data, in the header of a checkpoint file, a
schema is a map of

    name, kind, queryable_name (or None), serializer, serializer_version, schema_version,
    value_type, map_key_type (None but for a map): types, see `qstate.values.value_types`
    needs_function: whether queries of the state need the job's own code, for an aggregating state's result
    ttl_ms: how long a value counts, only for a state with a time-to-live. Its values are stored with their times (see
        `qstate.values.ttl`), and `serializer` is "timed:" and the serializer's name. So a reader that knows no times
        takes the values for those of a serializer that it does not know, and does not misread them

A reader without the job's code answers queries by kind, queryable name and serializer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from reprlib import repr as shown  # bounded: what is shown may come from anywhere
from typing import Any

from qstate.descriptors import MapStateDescriptor, StateDescriptor, StateKind
from qstate.errors import CheckpointError
from qstate.keys import ColumnType
from qstate.values.value_types import ValueType, type_from_plain, value_type_of

__all__ = ["StateSchema", "key_types_in", "serializer_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """One state's name, kind, types, serializer and versions. Its text is one line for people."""

    name: str
    kind: StateKind
    value_type: ValueType
    serializer: str
    queryable_name: str | None = None
    map_key_type: ValueType | None = None
    serializer_version: int = 1
    schema_version: int = 1
    ttl_ms: int | None = None

    @classmethod
    def of(cls, descriptor: StateDescriptor) -> StateSchema:
        """The schema that a descriptor declares."""
        key_type = value_type_of(descriptor.map_key_type) if isinstance(descriptor, MapStateDescriptor) else None
        return cls(
            name=descriptor.name,
            kind=descriptor.kind,
            value_type=value_type_of(descriptor.value_type),
            serializer=descriptor.serializer.name,
            queryable_name=descriptor.queryable_name,
            map_key_type=key_type,
            serializer_version=descriptor.serializer.version,
            schema_version=descriptor.schema_version,
            ttl_ms=None if descriptor.ttl is None else descriptor.ttl.duration_ms,
        )

    @classmethod
    def from_plain(cls, plain: Any) -> StateSchema:
        """The inverse of `to_plain`. Raises `CheckpointError` for anything else; it ignores unknown entries."""
        if not isinstance(plain, Mapping):
            raise CheckpointError(f"expected the schema of a state, got {shown(plain)}")
        kind = StateKind(_field(plain, "kind", _KINDS.__contains__, f"one of {', '.join(_KINDS)}"))
        key_type = plain.get("map_key_type")
        if (key_type is None) is (kind is StateKind.MAP):
            raise CheckpointError(f"the schema of a {kind.value} state has the map_key_type {shown(key_type)}")
        queryable_name = None
        if plain.get("queryable_name") is not None:
            queryable_name = _field(plain, "queryable_name", _is_name, _A_NAME)
        return cls(
            name=_field(plain, "name", _is_name, _A_NAME),
            kind=kind,
            value_type=type_from_plain(plain.get("value_type")),
            serializer=serializer_in(plain),
            queryable_name=queryable_name,
            map_key_type=None if key_type is None else type_from_plain(key_type),
            serializer_version=_field(plain, "serializer_version", _is_positive, _POSITIVE),
            schema_version=_field(plain, "schema_version", _is_positive, _POSITIVE),
            ttl_ms=None if plain.get("ttl_ms") is None else _field(plain, "ttl_ms", _is_positive, _POSITIVE),
        )

    @property
    def needs_function(self) -> bool:
        """Whether an answer needs the job's code: it is the aggregate function's result, not the stored bytes."""
        return self.kind is StateKind.AGGREGATING

    def to_plain(self) -> dict[str, Any]:
        """Plain data that MessagePack and JSON can hold."""
        plain = {
            "name": self.name,
            "kind": self.kind.value,
            "queryable_name": self.queryable_name,
            "serializer": self.serializer,
            "serializer_version": self.serializer_version,
            "schema_version": self.schema_version,
            "value_type": self.value_type.to_plain(),
            "map_key_type": None if self.map_key_type is None else self.map_key_type.to_plain(),
            "needs_function": self.needs_function,
        }
        if self.ttl_ms is None:
            return plain
        return {**plain, "serializer": _TIMED + self.serializer, "ttl_ms": self.ttl_ms}

    def __str__(self) -> str:
        types = str(self.value_type) if self.map_key_type is None else f"{self.map_key_type} to {self.value_type}"
        ttl = "" if self.ttl_ms is None else f", time-to-live {timedelta(milliseconds=self.ttl_ms)}"
        return (
            f"{self.kind.value} state of {types}, schema_version {self.schema_version}, "
            f"serializer {self.serializer!r} version {self.serializer_version}{ttl}"
        )


def serializer_in(plain: Mapping[Any, Any]) -> str:
    """The name of the serializer in a schema as plain data, also of a state with a time-to-live.

    Raises `CheckpointError` when there is none.
    """
    found: str = _field(plain, "serializer", _is_name, _A_NAME)
    if plain.get("ttl_ms") is None:
        return found
    name = found.removeprefix(_TIMED)
    if name in ("", found):
        raise CheckpointError(f"the schema of a state with a time-to-live has the serializer {shown(found)}")
    return name


def key_types_in(plain: Mapping[Any, Any]) -> tuple[ColumnType, ...]:
    """The types of the keys in a schema as plain data. Raises `CheckpointError` when there are none."""
    try:
        return tuple(map(ColumnType, plain["key_types"]))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"state {plain.get('name')!r} is stored without the types of its keys") from None


#: Before the serializer's name in the schema of a state with a time-to-live.
_TIMED = "timed:"
_KINDS = tuple(kind.value for kind in StateKind)
_A_NAME = "a text of at least one character"
_POSITIVE = "an integer of at least 1"


def _field(plain: Mapping[Any, Any], name: str, check: Callable[[Any], bool], expected: str) -> Any:
    found = plain.get(name)
    if not check(found):
        raise CheckpointError(f"the schema of a state has the {name} {shown(found)}, expected {expected}")
    return found


def _is_name(found: Any) -> bool:
    return type(found) is str and found != ""


def _is_positive(found: Any) -> bool:
    return type(found) is int and found >= 1
