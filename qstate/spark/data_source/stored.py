"""Reads state without its job: a checkpoint directory as of an epoch, or a savepoint.

Rules of this module: it finds the state in a source and gives its rows. It must not know columns or Arrow. A source has
the accumulators of aggregating states, and not the functions that make results of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pyspark.sql.datasource import InputPartition

from qstate.checkpoint import StateSource, StoredOperator, open_source, read_entries
from qstate.checkpoint.sources.entries import Entry, states_as_of
from qstate.errors import CheckpointError, ConfigError
from qstate.evolution.schema import StateSchema, key_types_in
from qstate.keys import KeyGroupRange
from qstate.spark.data_source.options import SourceOptions
from qstate.spark.data_source.table import StateRow, StateTable

__all__ = ["StoredState"]


class StoredState:
    """One state of a source, as of one epoch. Can be pickled."""

    def __init__(self, options: SourceOptions) -> None:
        """Looks for the state. Raises `CheckpointError` and `ConfigError`."""
        self._location, self._storage = options.location, dict(options.storage)
        source = open_source(self._location, self._storage)
        asked = options.number("epoch")
        stored, plain = _found(source, options, asked)
        schema = StateSchema.from_plain(plain)
        self._operator, self._name, self._is_map = stored.uid, schema.name, schema.map_key_type is not None
        self._epoch = stored.epoch if asked is None else asked
        self._ranges = [
            KeyGroupRange.of_subtask(one, stored.parallelism, source.max_parallelism)
            for one in range(stored.parallelism)
        ]
        self.table = StateTable(
            schema.kind.value, key_types_in(plain), None, schema.serializer, schema.value_type, schema.map_key_type
        )

    def partitions(self) -> list[InputPartition]:
        """A partition for each subtask that the job had."""
        return [InputPartition(one) for one in self._ranges]

    def rows(self, part: InputPartition) -> Iterator[StateRow]:
        """The rows of a partition. Raises `CheckpointError`."""
        source = open_source(self._location, self._storage)
        entries = read_entries(source, self._operator, epoch=self._epoch, key_groups=part.value)
        mine = (entry for entry in entries if entry.state == self._name)
        if self._is_map:
            return self._maps(mine)
        return (StateRow(entry.key, entry.namespace, entry.value, self._epoch) for entry in mine)

    def _maps(self, entries: Iterable[Entry]) -> Iterator[StateRow]:
        """A row for the entries of a map, which follow each other."""
        for (key, namespace), found in groupby(entries, lambda entry: (entry.key, entry.namespace)):
            yield StateRow(key, namespace, {entry.map_key: entry.value for entry in found}, self._epoch)


def _found(source: StateSource, options: SourceOptions, epoch: int | None) -> tuple[StoredOperator, Mapping[str, Any]]:
    """The operator that has the state, and the state's schema."""
    operators = source.operators()
    if options.operator and options.operator not in operators:
        raise CheckpointError(f"{source.location} has no operator {options.operator!r}; it has {', '.join(operators)}")
    wanted = [operators[options.operator]] if options.operator else operators.values()
    every = [(stored, plain) for stored in wanted for plain in states_as_of(source, stored, epoch)]
    for attribute in ("queryable_name", "name"):
        found = [(stored, plain) for stored, plain in every if plain.get(attribute) == options.state]
        if len(found) > 1:
            uids = ", ".join(stored.uid for stored, _ in found)
            raise ConfigError(f"several operators have a state {options.state!r}: give the option operator, of {uids}")
        if found:
            return found[0]
    names = sorted({str(plain.get("queryable_name") or plain.get("name")) for _, plain in every})
    raise CheckpointError(f"{source.location} has no state {options.state!r}; it has {', '.join(names) or 'none'}")
