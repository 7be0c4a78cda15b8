"""The register of the seeded defects of servers; the modules beside this one fill it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Type
from tests.defects.servers.meddler import Spoiler

__all__ = ["SPOILERS", "is_end", "seeded"]

SPOILERS: list[type[Spoiler]] = []


def seeded(spoiler: type[Spoiler]) -> type[Spoiler]:
    SPOILERS.append(spoiler)
    return spoiler


def is_end(fields: Sequence[Any]) -> bool:
    """Whether this is a Failure about the connection."""
    return fields[0] == Type.FAILURE and fields[1] == 0
