"""Jobs without Spark that are always stopped."""

from __future__ import annotations

from tests.runtime.conftest import job_of

__all__ = ["job_of"]
