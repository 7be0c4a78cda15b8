"""Compares the answers to clients with the results of a batch computation.

Rules of this module: it asks through a client and counts; it must not know how either side came about. Numbers have
to be equal exactly: both sides compute them from whole numbers or pass a reading on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from qstate.demo.expected import Expectation

__all__ = ["Asker", "Comparison", "Mismatch", "compare"]

KEYS_PER_REQUEST = 500


class Asker(Protocol):
    """The part of a client that a comparison needs."""

    def get_many(self, job: str, state: str, keys: Sequence[Any], namespace: Any = None) -> dict[Any, Any]: ...


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One key whose state is not as expected."""

    state: str
    namespace: Any
    key: Any
    expected: Any
    found: Any

    def __str__(self) -> str:
        where = f"{self.state}[{self.key!r}]" + (f" in {self.namespace!r}" if self.namespace is not None else "")
        return f"{where}: expected {self.expected!r}, found {self.found!r}"


@dataclass(slots=True)
class Comparison:
    """How many keys were compared, state by state, and which did not match."""

    keys: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.keys.values())


def compare(client: Asker, job: str, expectations: Iterable[Expectation]) -> Comparison:
    """Ask for every expected key and compare. Raises what the client raises."""
    comparison = Comparison()
    for wanted in expectations:
        comparison.keys[wanted.state] = comparison.keys.get(wanted.state, 0) + len(wanted.values)
        for keys in _chunks(wanted.values):
            views = client.get_many(job, wanted.state, keys, wanted.namespace)
            for key in keys:
                view = views[key]
                expected, found = wanted.values[key], None if view is None else view.contents()
                if not _same(expected, found):
                    comparison.mismatches.append(Mismatch(wanted.state, wanted.namespace, key, expected, found))
    return comparison


def _same(expected: Any, found: Any) -> bool:
    """Equal, and of one type: 1, 1.0 and True are three values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    return type(expected) is type(found) and bool(expected == found)


def _chunks(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while chunk := list(islice(rest, KEYS_PER_REQUEST)):
        yield chunk
