"""Runs a program with what the distribution pyspark-client has of PySpark: no Py4J, no core, no classic session.

As a program it gets the path of the other program.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

#: In pyspark, and not in pyspark-client 4.2.0.
ABSENT = ("py4j", "pyspark.core", "pyspark.sql.classic")


class Absent(MetaPathFinder):
    """Finds nothing, before others find it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        if fullname.startswith(ABSENT):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent())
    runpy.run_path(sys.argv[1], run_name="__main__")
