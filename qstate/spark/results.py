"""The arguments that say what an operator returns: its function and the schema of its result.

Rules of this module: it checks what the user has given, and parses schemas; it builds no plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from qstate.errors import JobError
from qstate.operators.side_outputs import MAIN
from qstate.spark.plan.event_time import with_watermark_of

__all__ = ["NO_SIDES", "Results", "check_function", "check_no_class", "results_of"]

#: No side outputs.
NO_SIDES: Mapping[str, Any] = MappingProxyType({})
_EXAMPLE = "'sensor string, alert double'"


def check_function(caller: str, function: object, *kinds: type) -> None:
    """Raise `JobError` unless the function is an object of one of these classes."""
    check_no_class(caller, function)
    if not isinstance(function, kinds):
        raise JobError(f"{caller} needs a {' or a '.join(kind.__name__ for kind in kinds)}, got {function!r}")


def check_no_class(caller: str, function: object) -> None:
    """Raise `JobError` for a class instead of an object of it."""
    if isinstance(function, type):
        raise JobError(f"{caller} needs a function object, got the class: write {function.__name__}(...)")


@dataclass(frozen=True, slots=True)
class Results:
    """The columns of the rows that a function yields, and those of its side outputs by their names."""

    main: StructType
    sides: Mapping[str, StructType] = field(default_factory=dict)

    @property
    def schema(self) -> StructType:
        """The result's schema, as `OperatorSpec.result_schema`. Columns of structs keep their metadata: watermarks."""
        outputs = {MAIN: self.main, **self.sides}
        fields = [StructField(name, schema) for name, schema in outputs.items()]
        return StructType(fields) if self.sides else self.main


def results_of(
    main: str | StructType,
    event_time_column: str,
    side_outputs: Mapping[str, str | StructType],
    streams: Sequence[DataFrame],
) -> Results:
    """The results of the arguments of `process`; one column of `main` has the watermark of the streams, if named."""
    if not isinstance(event_time_column, str):
        raise JobError(f"event_time_column takes the name of a column of output_schema, got {event_time_column!r}")
    if not isinstance(side_outputs, Mapping):
        raise JobError(f"side_outputs takes the schemas of the side outputs by name, got {side_outputs!r}")
    schema = _parsed_schema("output_schema", main)
    sides = {name: _parsed_schema(f"side output {name!r}", side) for name, side in side_outputs.items()}
    return Results(with_watermark_of(streams, schema, event_time_column) if event_time_column else schema, sides)


def _parsed_schema(what: str, schema: str | StructType) -> StructType:
    try:
        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as exc:
        reason = next(filter(None, str(exc).splitlines()), "")
        raise JobError(f"{what} cannot be read: {schema!r} ({reason}); expected is {_EXAMPLE}") from exc
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise JobError(f"{what} needs at least one column, as in {_EXAMPLE}; got {schema!r}")
    return parsed
