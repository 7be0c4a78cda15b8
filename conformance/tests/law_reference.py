"""Writes docs/reference/conformance.md from the laws; run it with `conformance` on the PYTHONPATH."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from qstate_conformance.laws import AREAS, Area, Law, find_laws

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
HEAD = """# The laws of the conformance suite

<!-- Made by conformance/tests/law_reference.py from the laws themselves; a test keeps the two in step. -->

Every law that `qstate-conformance` asks of a backend, a server or a client, with the rules that it checks. Rules of a
backend, such as `T1`, are in the [contract](python/backends.md), those of servers and clients, such as `P-GET-1`, in
the [wire protocol](protocol.md). A guide says how to
[run the suite in your CI](../how-to/run-the-conformance-suite.md).

A law that *needs* a capability is skipped for a backend that does not claim it; one that *proves* a capability shows
that the claim is true when it passes.
"""
_TITLES = {"backend": "Backends", "server": "Servers", "client": "Clients"}


def render() -> str:
    return HEAD + "".join(_area(area) for area in AREAS)


def _area(area: Area) -> str:
    laws = find_laws(area)
    groups = [(group, list(found)) for group, found in groupby(laws, key=lambda law: law.group)]
    return f"\n## {_TITLES[area]}\n\n{len(laws)} laws.\n" + "".join(
        f"\n### {_TITLES[area]}: {group.replace('_', ' ')}\n\n{_about(found[0])}\n\n{''.join(_table(found))}"
        for group, found in groups
    )


def _about(law: Law) -> str:
    """What a group of laws is about: the first paragraph of its module's docstring."""
    documentation = sys.modules[law.function.__module__].__doc__ or ""
    return " ".join(documentation.strip().split("\n\n")[0].split())


def _table(laws: list[Law]) -> Iterator[str]:
    yield "| law | what holds | checks |\n|---|---|---|\n"
    for law in laws:
        yield f"| `{law.id}` | {_cell(law.text)}{_capabilities(law)} | {', '.join(law.requirements)} |\n"


def _capabilities(law: Law) -> str:
    proves = sorted(f"`{capability.name.lower()}`" for capability in law.proves)
    needs = sorted(f"`{capability.name.lower()}`" for capability in law.needs - law.proves)
    said = [f"needs {', '.join(needs)}"] * bool(needs) + [f"proves {', '.join(proves)}"] * bool(proves)
    return f" (*{'; '.join(said)}*)" if said else ""


def _cell(text: str) -> str:
    """Text that stays within its cell: a bar would end it, outside of code or in it."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
