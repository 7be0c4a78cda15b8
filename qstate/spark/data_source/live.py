"""Reads the state of a running job: a partition for each range of key groups, straight from its owner.

Rules of this module: it plans ranges and asks the client. It must not know columns or Arrow.

There is no `pushFilters`. Spark 4.3 keeps what a reader has planned with the table, and not with the query: after
`frame.where("key = 'a'")`, `frame.collect()` would read with that filter, and of two filters in one plan both sides of
a join would get the later one. So the options `keys`, `prefix` and `namespace` select what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType

from pyspark.sql.datasource import InputPartition

from qstate.client import QueryableStateClient
from qstate.errors import ConfigError
from qstate.evolution.answer_types import MAP_KEY_SCHEMA, VALUE_SCHEMA, described_type
from qstate.keys import Column, ColumnType, Key, Namespace, key_group
from qstate.runtime.client.query import LIVE
from qstate.runtime.client.scanning import EVERY_NAMESPACE
from qstate.runtime.routing.location import LocationTable
from qstate.spark.data_source.options import SourceOptions
from qstate.spark.data_source.table import StateRow, StateTable
from qstate.values.text_forms import column_types, key_of, parse_columns, parse_namespace

__all__ = ["LiveState", "Selection"]

#: Keys of one get_many.
KEYS_AT_A_TIME = 1000


class _LivePart(InputPartition):
    """Key groups, and the keys to get of them; None: all are scanned."""

    def __init__(self, start: int, stop: int, keys: tuple[Key, ...] | None) -> None:
        super().__init__(None)
        self.start, self.stop, self.keys = start, stop, keys


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys are read. Raises `ConfigError` from `of` for options that no key of these types can fit."""

    keys: tuple[Key, ...] | None
    prefix: str | bytes | tuple[Column, ...] | None
    namespace: Namespace | EllipsisType

    @classmethod
    def of(
        cls, options: SourceOptions, types: list[ColumnType], spaces: Sequence[ColumnType] | None = None
    ) -> Selection:
        namespace = EVERY_NAMESPACE if options.namespace is None else parse_namespace(options.namespace, spaces)
        return cls(_keys(options.keys, types), _prefix(options.prefix, types), namespace)


def _keys(text: str, types: list[ColumnType]) -> tuple[Key, ...] | None:
    if not text:
        return None
    found = _json(text)
    if not isinstance(found, list) or not found:
        raise ConfigError(f'keys takes a list of keys in JSON, as in ["JFK", "LGA"], got {text!r:.80}')
    return tuple(dict.fromkeys(key_of(one, types) for one in found))


def _prefix(text: str, types: list[ColumnType]) -> str | bytes | tuple[Column, ...] | None:
    if not text:
        return None
    found = _json(text)
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return parse_columns(found, types)
    if types[0] not in (ColumnType.STRING, ColumnType.BINARY):
        raise ConfigError(
            "prefix is the beginning of a key's first column if that is text or binary; of other keys it is a list of "
            f'the first columns in JSON, each as text, as in ["1545"], got {text!r:.80}'
        )
    prefix: Column = parse_columns([text], types)[0]
    assert isinstance(prefix, str | bytes)
    return prefix


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class LiveState:
    """One state of a running job. Can be pickled."""

    def __init__(self, options: SourceOptions) -> None:
        """Asks the job for the state's description. Raises the `QueryError` of the failure, and `ConfigError`."""
        self._options = options
        with options.client() as client:
            location = client.locate(options.job, options.state)
        self.table = _table(location)
        self.groups = location.max_parallelism
        gaps = [(one.start, one.stop) for one in location.gaps()]
        owned = [(owner.key_groups.start, owner.key_groups.stop) for owner in location.owners]
        self._ranges = sorted([*owned, *gaps])
        self.selection = Selection.of(options, list(self.table.key_types), self.table.namespace_types)

    def partitions(self) -> list[_LivePart]:
        """A partition for each owner, and for each range whose owner restarts."""
        keys = self.selection.keys
        if keys is None:
            return [_LivePart(*one, None) for one in self._ranges]
        grouped = [(key_group(key, self.groups), key) for key in keys]
        parts = [(one, tuple(key for group, key in grouped if one[0] <= group < one[1])) for one in self._ranges]
        return [_LivePart(*one, found) for one, found in parts if found]

    def rows(self, part: InputPartition) -> Iterator[StateRow]:
        """The rows of a partition. Raises what the client raises."""
        assert isinstance(part, _LivePart)
        with self._options.client(self.table.serializer) as client:
            yield from self._scanned(client, part) if part.keys is None else self._got(client, part.keys)

    def _scanned(self, client: QueryableStateClient, part: _LivePart) -> Iterator[StateRow]:
        options, selection = self._options, self.selection
        found = client.scan(
            options.job,
            options.state,
            selection.prefix,
            options.isolation or LIVE,
            namespace=selection.namespace,
            key_groups=(part.start, part.stop),
        )
        with found:
            for key, namespace, view in found:
                yield StateRow(key, namespace, view.contents(), view.epoch)

    def _got(self, client: QueryableStateClient, keys: tuple[Key, ...]) -> Iterator[StateRow]:
        options, namespace = self._options, self.selection.namespace
        space = None if isinstance(namespace, EllipsisType) else namespace
        for at in range(0, len(keys), KEYS_AT_A_TIME):
            some = keys[at : at + KEYS_AT_A_TIME]
            for key, view in client.get_many(
                options.job, options.state, some, space, options.isolation or LIVE
            ).items():
                if view is not None:
                    yield StateRow(key, space, view.contents(), view.epoch)


def _table(location: LocationTable) -> StateTable:
    described = location.state
    spaces = described.get("namespace_types")
    return StateTable(
        described["kind"],
        column_types(described["key_types"]),
        column_types(spaces) if spaces else None,
        described["serializer"],
        described_type(described, VALUE_SCHEMA),
        described_type(described, MAP_KEY_SCHEMA) if described["kind"] == "map" else None,
    )
