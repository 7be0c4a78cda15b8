"""The backends for tests of parts that know the interface alone: one in every run, the other with `-m soak`.

That both backends keep the interface's contract is what the conformance suite proves.
"""

from __future__ import annotations

import pytest

__all__ = ["EITHER_BACKEND"]

EITHER_BACKEND = ["rocksdb", pytest.param("heap", marks=pytest.mark.soak)]
