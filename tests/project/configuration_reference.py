"""Writes docs/reference/configuration.md from the table of options: run it from the root of the checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qstate.config import option_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
HEAD = """# Configuration

<!-- Made by tests/project/configuration_reference.py from qstate.config; a test keeps the two in step. -->

Every setting can be given in Python, `Job(spark, "alerts", backend="rocksdb", parallelism=8)`, or in the Spark conf,
`spark.qstate.backend=rocksdb`. Python wins where both are given. An unknown setting is an error that lists the valid
ones.

An option of the chosen backend is an entry of `backend_options` in Python, and `spark.qstate.backend.<option>` in the
Spark conf. An option of the object store of checkpoints and savepoints (see
[Keep checkpoints in an object store](../how-to/object-stores.md)) is an entry of `checkpoint_storage_options`, and
`spark.qstate.checkpoint.storage.<option>`.

Ports are a list of ports and ranges, tried in order: `9069,9100-9299`; `0` is any free port. In Python a number, a
`range`, and an iterable of texts, numbers and ranges will do as well.

| in Python | in the Spark conf | default | meaning |
|---|---|---|---|
"""


def render() -> str:
    rows = [
        f"| `{name}` | `{key}` | {_shown(default)} | {meaning} |\n" for name, key, default, meaning in option_table()
    ]
    return HEAD + "".join(rows)


def _shown(default: Any) -> str:
    if default == "":
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    PAGE.write_text(render())
