"""Generated input: Parquet files, one per micro-batch, that all contenders read.

Rules of this module: rows and files. The same number always gives the same rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["READINGS_DDL", "ReadingFiles", "readings", "sensor_name"]

READINGS_DDL = "sensor string, temperature double, at bigint"

#: Row groups per file: Spark reads a file with as many tasks, as it does with the larger files of real life.
ROW_GROUPS = 4


def sensor_name(number: int) -> str:
    """The key of a sensor."""
    return f"sensor-{number:07d}"


def readings(number: int, rows: int, keys: int) -> pa.Table:
    """Readings of micro-batch `number`: uniform sensors and temperatures, `at` counts on from batch to batch."""
    random = np.random.default_rng(number)
    names = pa.array(list(map(sensor_name, range(keys))))
    return pa.table(
        {
            "sensor": names.take(pa.array(random.integers(0, keys, rows))),
            "temperature": np.round(random.uniform(10.0, 30.0, rows), 2),
            "at": np.arange(number * rows, (number + 1) * rows),
        }
    )


class ReadingFiles:
    """The files of one experiment, written when they are first asked for."""

    def __init__(self, directory: Path, *, rows: int, keys: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.rows = rows
        self.keys = keys

    def file(self, number: int) -> Path:
        """The file of a micro-batch."""
        path = self._directory / f"{number:06d}.parquet"
        if not path.exists():
            table = readings(number, self.rows, self.keys)
            pq.write_table(table, path, row_group_size=-(-self.rows // ROW_GROUPS))
        return path

    def sensor(self, number: int) -> str:
        """The name of a sensor; the numbers go round."""
        return sensor_name(number % self.keys)
