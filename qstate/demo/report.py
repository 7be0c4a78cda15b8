"""The demo's result: compares the answers to clients and the written output with the batch computation.

Rules of this module: it compares and prints. It starts and stops nothing.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from qstate.demo.compare import Asker, compare
from qstate.demo.data import DataSet
from qstate.demo.expected import expected_outputs, expected_states
from qstate.demo.streams import JOB, Streams

__all__ = ["report"]

SHOWN_MISMATCHES = 20


def report(spark: SparkSession, data: DataSet, streams: Streams, client: Asker) -> bool:
    """Compare every key and every output, and print the results; returns whether all are right."""
    comparison = compare(client, JOB, expected_states(spark, data))
    for state, keys in comparison.keys.items():
        print(f"  {state}: {keys:,} keys")
    wrong_outputs = _wrong_outputs(spark, data, streams)
    for mismatch in comparison.mismatches[:SHOWN_MISMATCHES]:
        print(f"  MISMATCH {mismatch}")
    verdict = f"compared {comparison.total:,} keys: {len(comparison.mismatches):,} mismatches"
    if wrong_outputs:
        verdict += f"; wrong number of rows in {' and '.join(wrong_outputs)}"
    print(verdict, flush=True)
    return not comparison.mismatches and not wrong_outputs


def _wrong_outputs(spark: SparkSession, data: DataSet, streams: Streams) -> list[str]:
    """The outputs with a wrong number of rows: each row must be there exactly once."""
    directories = {"alerts": streams.alerts_directory, "late departures": streams.late_departures_directory}
    wrong = []
    for name, expected in expected_outputs(spark, data).items():
        written = spark.read.parquet(str(directories[name])).count()
        print(f"  {name}: {written:,} rows written, {expected:,} expected")
        if written != expected:
            wrong.append(name)
    return wrong
