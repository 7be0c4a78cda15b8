"""Releases the days of a data set into the directories that Spark watches, at a pace.

Rules of this module: it copies files and keeps time, on a thread of its own. A file appears whole or not at all.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from qstate.demo.data import DataSet
from qstate.host.private_files import make_directories

__all__ = ["Feeder"]


class Feeder:
    """Brings `days_per_s` days of both streams per second into `directory`, until the last day or `stop()`."""

    def __init__(self, data: DataSet, directory: Path, days_per_s: float) -> None:
        self._data = data
        self.directory = directory
        self._pause_s = 1.0 / days_per_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="qstate-demo-feeder", daemon=True)
        self._pairs = [(source, directory / source.name) for source in (data.flights_directory, data.weather_directory)]
        for _, target in self._pairs:
            make_directories(target)

    def start(self) -> None:
        self._thread.start()

    def finished(self) -> bool:
        """Whether every day has been released."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def stop(self) -> None:
        """Release nothing more. Idempotent."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _feed(self) -> None:
        for day in self._data.days:
            for source, target in self._pairs:
                # Spark ignores files whose name begins with a dot. The copy keeps the modification time, by which Spark
                # orders the files.
                hidden = target / f".{day}"
                shutil.copy2(source / f"{day}.parquet", hidden)
                hidden.rename(target / f"{day}.parquet")
            if self._stopping.wait(self._pause_s):
                return
