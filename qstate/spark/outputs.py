"""The outputs of an operator with side outputs: one of them as a stream, or each micro-batch to a sink for each.

Rules of this module: it knows DataFrames with one struct column for each output, and no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.errors import JobError

__all__ = ["output_of", "write_each"]

#: Writes the rows of one output in one micro-batch: `sink(rows, epoch)`.
Sink: TypeAlias = Callable[[DataFrame, int], Any]


def output_of(result: DataFrame, name: str) -> DataFrame:
    """The rows of one output, `main` or a side output, with their own columns.

    `result` is the result of `KeyedStream.process` with side outputs, or a micro-batch of it. As a stream, it is for a
    query that needs one output: a second query of the same operator is refused. Use `write_each` for several outputs.

    Raises `JobError` for a name that is no output.
    """
    if name not in result.columns:
        raise JobError(f"no output is called {name!r}; there are {', '.join(map(repr, result.columns))}")
    return result.where(F.col(name).isNotNull()).select(f"{name}.*")


def write_each(**sinks: Sink) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes the rows of each output to a sink of its own, in one pass.

    `sinks` has one function for each output, `main` and all side outputs. Each is called as `sink(rows, epoch)`, in the
    order of the arguments. The micro-batch is evaluated and cached before, so a sink may read its rows several times,
    or not at all; it is not in the cache any more when the function returns or fails. If a sink fails, the later ones
    are not called, and Spark runs the micro-batch again when the query is restarted: all sinks then get the same rows
    for the same epoch.

    Raises `JobError` for a sink that cannot be called; the function for `foreachBatch` raises it for outputs without a
    sink, and sinks without an output.
    """
    for name, sink in sinks.items():
        if not callable(sink):
            raise JobError(f"write_each: the sink of {name!r} is a function(rows, epoch), got {sink!r}")

    def write(batch: DataFrame, epoch: int) -> None:
        _check_names(batch.columns, list(sinks))
        batch.persist()
        try:
            batch.count()  # every partition: an epoch that no sink reads to its end would be skipped
            for name, sink in sinks.items():
                sink(output_of(batch, name), epoch)
        finally:
            batch.unpersist()

    return write


def _check_names(outputs: list[str], sinks: list[str]) -> None:
    missing = [name for name in outputs if name not in sinks]
    unknown = [name for name in sinks if name not in outputs]
    if missing or unknown:
        faults = [f"no sink for {missing}"] * bool(missing) + [f"no output is called {unknown}"] * bool(unknown)
        raise JobError(f"write_each: {' and '.join(faults)}; the outputs are {outputs}")
