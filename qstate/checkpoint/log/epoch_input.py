"""What identifies the rows that an epoch was made of: stored with each epoch, compared when Spark gives it again.

Rules of this module: values; it knows no file, no row and no Spark.

    footer of epochs    input    {rows, digest, columns}

Spark numbers its micro-batches. When it loses what it has written of one, it plans it again under the same number,
and perhaps with other rows. So an epoch is known by its rows: how many, and the sum of their hashes, which does not
depend on the order and the batches in which they come.

**Other columns.** A program that has changed may give the same rows other columns, and so other hashes. Then only
the number of rows can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from xxhash import xxh64_intdigest

__all__ = ["EpochInput", "digest_of_columns", "input_fact", "input_of"]

INPUT = "input"


@dataclass(frozen=True, slots=True)
class EpochInput:
    """`digest` is the sum of the rows' hashes modulo 2**64, `columns` that of the columns' names and types."""

    rows: int
    digest: int
    columns: int

    def may_be(self, other: EpochInput) -> bool:
        """Whether the two are of the same rows, as far as that can be told."""
        if self.rows != other.rows:
            return False
        return self.digest == other.digest or self.columns != other.columns

    def __str__(self) -> str:
        return f"{self.rows} rows (digest {self.digest:016x})"


def digest_of_columns(columns: Iterable[tuple[str, str]]) -> int:
    """Of the names and types of columns, in their order."""
    return xxh64_intdigest(repr(list(columns)).encode())


def input_fact(found: EpochInput | None) -> dict[str, Any]:
    """What the footer of an epoch says of its input: nothing when that is not known."""
    return {} if found is None else {INPUT: asdict(found)}


def input_of(footer: Mapping[str, Any]) -> EpochInput | None:
    """The inverse of `input_fact`. None for an epoch of a qstate that did not store it."""
    plain = footer.get(INPUT)
    return None if plain is None else EpochInput(plain["rows"], plain["digest"], plain["columns"])
