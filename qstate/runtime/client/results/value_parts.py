"""Parts of one value: what a client asks for, and what it makes of the answers.

Rules of this module: no sockets, no threads, no asyncio. The two clients send the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from qstate.errors import ConcurrentModification, ConfigError, TooLarge
from qstate.keys import Key, Namespace, check_key
from qstate.protocol.fields import MAX_INT64
from qstate.protocol.messages import GetPart, Part
from qstate.protocol.part_messages import BYTES, ENTRIES, PAGE, SIZE, SLICE
from qstate.runtime.client.arguments import check_names, keys_of, query_of
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.control.tracing import Tracing

__all__ = ["DEFAULT_LIMIT", "LARGEST", "AskedPart", "MapPage", "Pieces"]

#: How many entries a page has unless the caller says otherwise.
DEFAULT_LIMIT = 1000
#: The largest value that is put together from pieces unless the caller says otherwise, in bytes.
LARGEST = 1 << 30
#: How often the reading of a value in pieces begins, if it changes meanwhile.
TRIES = 5

View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class MapPage(Generic[View]):
    """Some entries of a map: their view, None without one, and the map key after which the next page begins.

    After the last page `after` is None. A page before it may have few entries or none.
    """

    view: View | None
    after: Key | None


class AskedPart(NamedTuple):
    """A request for a part of a value, the query that says of which value, and the seconds that it may take."""

    query: Query
    request: GetPart
    timeout_s: float | None

    @classmethod
    def of(cls, names: tuple[Any, Any], key: Key, namespace: Namespace, isolation: str, demands: Any) -> AskedPart:
        """Without saying which part. Raises `ConfigError` and `WrongKeyType`."""
        timeout_s = demands.pop("timeout_s", None)
        query = query_of(*names, namespace, isolation, **demands)
        check_names(*names)
        query.check_keys((key,))
        return cls(query, GetPart(0, 0, names, namespace, query.options, key, BYTES, (), None, 0, 0), timeout_s)

    def entries(self, map_keys: Iterable[Key]) -> AskedPart:
        """These entries of a map."""
        wanted = keys_of(map_keys)
        if not wanted:
            raise ConfigError("map_keys must name one entry or more")
        for map_key in wanted:
            check_key(map_key)
        return self._asking(part=ENTRIES, map_keys=wanted)

    def page(self, after: Key | None, limit: int) -> AskedPart:
        """The next entries of a map."""
        if type(limit) is not int or limit < 1:
            raise ConfigError(f"limit must be a number of entries from 1, got {limit!r}")
        if after is not None:
            check_key(after)
        return self._asking(part=PAGE, after=after, length=min(limit, MAX_INT64))

    def slice(self, start: int, stop: int | None) -> AskedPart:
        """The elements of a list from one position to another."""
        for name, position in (("start", start), ("stop", 0 if stop is None else stop)):
            if type(position) is not int or not 0 <= position <= MAX_INT64:
                raise ConfigError(f"{name} must be a position in the list, from 0, got {position!r}")
        return self._asking(part=SLICE, start=start, length=MAX_INT64 if stop is None else max(0, stop - start))

    def size(self) -> AskedPart:
        """The number of elements or entries."""
        return self._asking(part=SIZE)

    def piece(self, start: int) -> AskedPart:
        """What a get would answer, from a byte on."""
        return self._asking(part=BYTES, start=start, length=MAX_INT64)

    @contextmanager
    def traced(self, tracing: Tracing | None) -> Iterator[AskedPart]:
        """The same, which carries a span that ends with the block; without tracing as it is."""
        if tracing is None:
            yield self
            return
        span = tracing.of_client(self.query.job, self.query.state, 1)
        with tracing.ended(span):
            yield self._asking(attributes=tracing.carried(span))

    def view(self, part: Part, known: CachedState) -> Any:
        """The view of a part that has the form of a value, None if there is nothing in it."""
        return None if part.result is None else known.maker.view(part.result, part.epoch, self.query.isolation)

    def _asking(self, **fields: Any) -> AskedPart:
        return self._replace(request=self.request._replace(**fields))


class Pieces:
    """Puts a value together from pieces that are of one version of it, and begins again when it has changed."""

    def __init__(self, asked: AskedPart, most_bytes: int) -> None:
        if type(most_bytes) is not int or most_bytes < 1:
            raise ConfigError(f"max_bytes must be a number of bytes from 1, got {most_bytes!r}")
        self._asked = asked
        self._most_bytes = most_bytes
        self._tries = 0
        self._found: list[Part] = []
        #: The view of the value, None without one, once `take` has returned True.
        self.view: Any = None

    @property
    def next(self) -> AskedPart:
        """The piece to ask for next."""
        return self._asked.piece(sum(len(part.result or b"") for part in self._found))

    def take(self, part: Part, known: CachedState) -> bool:
        """Add a piece. Returns whether it was the last one.

        Raises `ConcurrentModification` when the value has changed too often, `TooLarge` when it is over the limit.
        """
        if part.total > self._most_bytes:
            raise TooLarge(field="max_bytes", limit=self._most_bytes)
        first = self._found[0] if self._found else part
        if (part.version, part.fingerprint, part.total) != (first.version, first.fingerprint, first.total):
            self._begin_again()
            return False
        self._found.append(part)
        if sum(len(one.result or b"") for one in self._found) < part.total:
            return False
        if part.result is not None:
            data = b"".join(one.result or b"" for one in self._found)
            # Its pieces are equal in all these epochs.
            epoch = min(one.epoch for one in self._found)
            self.view = known.maker.view(data, epoch, self._asked.query.isolation)
        return True

    def _begin_again(self) -> None:
        self._found = []
        self._tries += 1
        if self._tries == TRIES:
            raise ConcurrentModification(tries=TRIES)
