"""The demo's options.

Rules of this module: arguments and their defaults, so that `qstate demo --help` works without the demo's extra; it
must not know what the demo does with them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["DemoOptions", "add_demo_arguments"]

#: With a page to watch, a year takes a little more than a minute.
SERVED_SPEED = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """How to run the demo."""

    backend: str = "heap"
    parallelism: int = 2
    speed: float | None = None
    days: int | None = None
    serve: bool = False
    ports: str = "9069,9100-9299"
    page_ports: str = "8069-8099"
    work_dir: Path | None = None
    plain: bool = False
    verbose: bool = False

    @property
    def days_per_s(self) -> float:
        """The speed of the replay; 0: as fast as possible."""
        return (SERVED_SPEED if self.serve else 0.0) if self.speed is None else self.speed

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> DemoOptions:
        return cls(**{entry.name: getattr(arguments, entry.name) for entry in fields(cls)})


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    default = DemoOptions()
    parser.add_argument(
        "--backend",
        default=default.backend,
        metavar="NAME",
        help="state backend: heap, rocksdb, or one that an installed package registers (default: %(default)s)",
    )
    parser.add_argument(
        "--parallelism",
        type=_at_least_one,
        default=default.parallelism,
        metavar="N",
        help="subtasks per operator, and cores for Spark (default: %(default)s)",
    )
    parser.add_argument(
        "--speed",
        type=_not_negative,
        default=default.speed,
        metavar="RATE",
        help=f"days to replay per second; 0: as fast as possible (default: 0, with --serve {SERVED_SPEED:g})",
    )
    parser.add_argument(
        "--days", type=_at_least_one, metavar="N", help="replay the first N days only (default: the whole year)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the live page, and stay up for queries at the end, until Ctrl-C"
    )
    parser.add_argument(
        "--page-ports",
        default=default.page_ports,
        metavar="PORTS",
        help="ports for the live page of --serve, tried in order (default: %(default)s)",
    )
    parser.add_argument(
        "--ports",
        default=default.ports,
        metavar="PORTS",
        help="ports for the client proxies, tried in order: a list of ports and ranges (default: %(default)s)",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="keep input, checkpoints and logs there, in a new directory (default: a temporary one)",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines instead of a live dashboard")
    parser.add_argument("--verbose", action="store_true", help="show Spark's warnings, too")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return number
