"""A record as a job would declare it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Reading:
    airport: str
    degrees: list[float]
