"""A dataclass as it comes from a script or a notebook: by value, from another process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from pyspark import cloudpickle

_SCRIPT = """
import sys
from dataclasses import dataclass, field
from pyspark import cloudpickle

@dataclass
class Place:
    lat: float
    alt: float = 0.0
    tags: list = field(default_factory=list)

sys.stdout.buffer.write(cloudpickle.dumps(Place))
"""


def place_by_value() -> Any:
    """A class of another process's main module, with the fields lat, alt = 0.0 and tags = []."""
    made = subprocess.run([sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, check=True, timeout=60)
    return cloudpickle.loads(made.stdout)
