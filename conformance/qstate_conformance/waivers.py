"""Waivers: laws that a subject is known to break, each with a reason and a link, in a TOML file.

    [[waiver]]
    law = "backend.scan.pages_are_in_order"
    reason = "the store of version 2 has no ordered scan; version 3 brings one"
    link = "https://example.org/issues/17"

Rules of this module: it reads and checks waivers. It must not decide what they do to a run (`outcomes` does). A
waived law is run all the same: a waiver ends when its law is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Waiver", "WaiverError", "read_waivers"]


class WaiverError(Exception):
    """The waiver file cannot be read, or a waiver in it is not complete."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """One law that need not hold, why, and where that is looked after."""

    law: str
    reason: str
    link: str


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers in a file. Raises `WaiverError`, with the place and what is missing there."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise WaiverError(f"cannot read the waivers in {path}: {exc}") from exc
    if unknown := sorted(content.keys() - {"waiver"}):
        raise WaiverError(f"{path}: unknown {', '.join(unknown)}; the file is a list of [[waiver]]")
    entries = content.get("waiver", [])
    if not isinstance(entries, list):
        raise WaiverError(f"{path}: a waiver is written [[waiver]], with two brackets")
    waivers = tuple(_waiver(f"{path}, waiver {number}", entry) for number, entry in enumerate(entries, 1))
    _refuse_repeated(path, waivers)
    return waivers


def _waiver(where: str, entry: Mapping[str, Any]) -> Waiver:
    names = [field.name for field in fields(Waiver)]
    if unknown := sorted(entry.keys() - set(names)):
        raise WaiverError(f"{where}: unknown {', '.join(unknown)}; a waiver has {', '.join(names)}")
    for name in names:
        value = entry.get(name)
        if not isinstance(value, str) or not value.strip():
            raise WaiverError(f"{where}: {name} is missing; a waiver needs {', '.join(names)}, none of them empty")
    return Waiver(**{name: entry[name].strip() for name in names})


def _refuse_repeated(path: Path, waivers: Sequence[Waiver]) -> None:
    laws = [waiver.law for waiver in waivers]
    if repeated := sorted({law for law in laws if laws.count(law) > 1}):
        raise WaiverError(f"{path}: waived more than once: {', '.join(repeated)}")
