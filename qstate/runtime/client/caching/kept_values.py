"""The values that a cache holds: bounded in number and bytes, the ones used least recently go first.

Rules of this module: a dictionary with bounds. It knows neither states nor epochs' meaning, and takes no lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from qstate.errors import ConfigError
from qstate.runtime.client.arguments import check_timeout

__all__ = ["CacheStatistics", "ClientCache", "Kept", "KeptValues"]

#: What an entry takes beside its value, in bytes: measured with short text keys.
ENTRY_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCache:
    """The settings of a client's cache of committed values.

    A committed get that says no `max_staleness_s` of its own takes an answer of the cache that is at most so old. The
    cache holds at most `most_entries` values, and about `most_bytes` bytes. Raises `ConfigError`.
    """

    max_staleness_s: float = 1.0
    most_entries: int = 100_000
    most_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_timeout(self.max_staleness_s, "max_staleness_s")
        for name in ("most_entries", "most_bytes"):
            number = getattr(self, name)
            if type(number) is not int or number < 1:
                raise ConfigError(f"{name} of a ClientCache must be a number from 1, got {number!r}")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache has done: the keys that it answered and those that it did not, and what it holds now."""

    hits: int
    misses: int
    entries: int
    bytes: int


class Kept:
    """A value as an answer has it, None for no value, and the epoch that it is from. `view` is its last view."""

    __slots__ = ("data", "epoch", "view")

    def __init__(self, data: bytes | None, epoch: int) -> None:
        self.data = data
        self.epoch = epoch
        self.view: Any = None


class KeptValues:
    """Values by their places, within the bounds of the settings."""

    def __init__(self, settings: ClientCache) -> None:
        self._settings = settings
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def used(self, place: Hashable) -> Kept | None:
        """The value at a place, which a get asks for."""
        kept = self._kept.get(place)
        if kept is not None:
            self._kept.move_to_end(place)
        return kept

    def find(self, place: Hashable) -> Kept | None:
        """The value at a place."""
        return self._kept.get(place)

    def put(self, place: Hashable, data: bytes | None, epoch: int) -> None:
        """Hold a value in place of an earlier one. A value that alone is over the bound is not held."""
        self.drop(place)
        size = _size(data)
        if size > self._settings.most_bytes:
            return
        self._kept[place] = Kept(data, epoch)
        self.bytes += size
        while len(self._kept) > self._settings.most_entries or self.bytes > self._settings.most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= _size(oldest.data)

    def drop(self, place: Hashable) -> None:
        """Hold nothing at a place."""
        kept = self._kept.pop(place, None)
        if kept is not None:
            self.bytes -= _size(kept.data)


def _size(data: bytes | None) -> int:
    return ENTRY_BYTES + (0 if data is None else len(data))
