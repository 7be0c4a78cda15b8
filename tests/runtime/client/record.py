"""A record type of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Reading:
    airport: str
    degrees: list[float]
