"""The identity of an epoch's input rows: stored with each epoch, compared when Spark repeats the epoch.

Rules of this module: values only; it knows no file, no row and no Spark.

    footer of epochs    input    {rows, digest, columns}

Spark numbers its micro-batches. When it loses what it wrote about one, it plans that one again under the same number,
perhaps with other rows. So the rows identify an epoch: their number and the sum of their hashes. The sum does not
depend on the order and the batches in which the rows arrive.

**Other columns.** A changed program may give the same rows other columns, and so other hashes. Then only the number
of rows can be compared.
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
        """Whether both may describe the same rows; see the module's rule for other columns."""
        if self.rows != other.rows:
            return False
        return self.digest == other.digest or self.columns != other.columns

    def __str__(self) -> str:
        return f"{self.rows} rows (digest {self.digest:016x})"


def digest_of_columns(columns: Iterable[tuple[str, str]]) -> int:
    """The digest of the names and types of columns, in their order."""
    return xxh64_intdigest(repr(list(columns)).encode())


def input_fact(found: EpochInput | None) -> dict[str, Any]:
    """The fact in an epoch's footer about its input: empty when the input is not known."""
    return {} if found is None else {INPUT: asdict(found)}


def input_of(footer: Mapping[str, Any]) -> EpochInput | None:
    """The inverse of `input_fact`. None for an epoch of an older qstate, which did not store it."""
    plain = footer.get(INPUT)
    return None if plain is None else EpochInput(plain["rows"], plain["digest"], plain["columns"])
