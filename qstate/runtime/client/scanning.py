"""Scans of a client: page after page, until there are no more keys.

Rules of this module: no sockets, no threads, no asyncio. A `Scanner` says which page to ask for next and what a page
has; the two clients ask for the pages. So a scan holds one page in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import EllipsisType
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack

from qstate.errors import ConfigError, Detail, QueryError, Unavailable, WrongKeyType, query_error
from qstate.keys import (
    MAX_KEY_COLUMNS,
    MAX_PARALLELISM_LIMIT,
    Column,
    Key,
    Namespace,
    check_column,
    check_key,
    decode_key,
    encode_key,
    key_group,
)
from qstate.protocol.fields import MAX_INT64
from qstate.protocol.messages import Page, Scan
from qstate.runtime.client.arguments import check_names, query_of
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState

__all__ = ["EVERY_NAMESPACE", "RELEASE_TIMEOUT_S", "ScanPosition", "ScannedEntry", "Scanner", "Selected", "key_only"]

#: The namespace of a scan that visits all of them; None is the void namespace.
EVERY_NAMESPACE: EllipsisType = ...
#: How often a page is asked for when the connection breaks. A page that was sent may have killed the server.
TRIES = 3
PAUSE_S = 0.1
#: How long a client tries to tell the server that it needs a scan no longer. The server notices by itself, later.
RELEASE_TIMEOUT_S = 1.0

View = TypeVar("View")


class _Entry(NamedTuple):
    key: Key
    namespace: Namespace
    view: Any


class ScannedEntry(_Entry, Generic[View]):
    """A key that a scan visited, its namespace, and the view of its value (None when no values were asked for)."""

    # A named tuple itself can be generic from Python 3.11 only.
    __slots__ = ()
    view: View


class Selected(NamedTuple):
    """Which keys a scan visits. Raises `ConfigError` and `WrongKeyType` from `check`.

    `key_groups`: the first one and one past the last. `cursor`: where an earlier scan was.
    """

    prefix: str | bytes | tuple[Column, ...] | None = None
    namespace: Namespace | EllipsisType = EVERY_NAMESPACE
    key_groups: tuple[int, int] | range | None = None
    limit: int | None = None
    cursor: bytes | None = None

    def check(self) -> None:
        """Raise `ConfigError` or `WrongKeyType` for what no scan can have."""
        prefix = self.prefix
        if prefix is not None:
            columns = (prefix,) if isinstance(prefix, str | bytes) else prefix
            if not isinstance(columns, tuple) or not columns:
                raise ConfigError(f"prefix must be text, bytes, or a tuple of the first key columns, got {prefix!r}")
            if len(columns) > MAX_KEY_COLUMNS:
                raise WrongKeyType(expected=f"at most {MAX_KEY_COLUMNS} columns", got=f"tuple of {len(columns)}")
            for column in columns:
                check_column(column)
        if self.namespace is not EVERY_NAMESPACE and self.namespace is not None:
            check_key(self.namespace)
        if self.limit is not None and (type(self.limit) is not int or not 1 <= self.limit <= MAX_INT64):
            raise ConfigError(f"limit must be a number of keys from 1 to {MAX_INT64}, got {self.limit!r}")

    def groups(self) -> tuple[int, int]:
        """The first key group and one past the last. Raises `ConfigError`."""
        groups = self.key_groups
        if groups is None:
            return 0, MAX_PARALLELISM_LIMIT
        if isinstance(groups, range) and groups.step == 1:
            groups = (groups.start, groups.stop)
        with suppress(TypeError, ValueError):
            start, stop = groups
            if type(start) is type(stop) is int and 0 <= start < stop <= MAX_PARALLELISM_LIMIT:
                return start, stop
        raise ConfigError(
            f"key_groups must be a range or (first, one past the last) of 0..{MAX_PARALLELISM_LIMIT}, got {groups!r}"
        )

    def place(self) -> tuple[int, tuple[Namespace, Key] | None] | None:
        """The key group and the place of the cursor, None without one. Raises `ConfigError`."""
        if self.cursor is None:
            return None
        try:
            group, after = msgpack.unpackb(self.cursor)
            if not 0 <= group <= MAX_PARALLELISM_LIMIT:
                raise ValueError(group)
            if after is None:
                return group, None
            namespace, key = map(decode_key, after)
            check_key(key)
            return group, (namespace, key)  # type: ignore[return-value]  # checked
        except Exception:
            raise ConfigError(f"cursor must be the `cursor` of an earlier scan, got {self.cursor!r}") from None


class Scanner:
    """One scan: `request` is the next page to ask for, until `over`; `take` turns a page into entries.

    `show` is what pages have: `values`, `keys` or `count`. `epoch` is that of the last page.
    """

    def __init__(
        self, target: tuple[str, str], selected: Selected, isolation: str, show: str, demands: Mapping[str, Any]
    ) -> None:
        check_names(*target)
        selected.check()
        self.query: Query = query_of(*target, None, isolation, **demands)
        self.epoch: int | None = None
        self.count = 0
        self.over = False
        self._show = show
        self._left = selected.limit
        self._groups = 0
        self._view = b""
        self._failures = 0
        spaces = () if isinstance(selected.namespace, EllipsisType) else (selected.namespace,)
        start, stop = selected.groups()
        place = selected.place()
        if place is not None:
            if place[0] >= stop:
                self.over = True
            start = max(start, min(place[0], stop - 1))
        after = None if place is None else place[1]
        self._request = Scan(1, 0, target, spaces, selected.prefix, start, stop, after, b"", {})
        #: The key group, None for that of the key, and the place after which the scan goes on for its caller.
        self._place: tuple[int | None, tuple[Namespace, Key] | None] = (start, after)

    @property
    def request(self) -> Scan:
        """The next page."""
        options: dict[str, Detail] = dict(self.query.options)
        if self._show != "values":
            options["show"] = self._show
        if self._left is not None:
            options["limit"] = self._left
        return self._request._replace(view=self._view, options=options)

    @property
    def cursor(self) -> bytes:
        """Where the scan is, for a later one to go on: after the last entry that was given."""
        group, after = self._place
        if group is None:
            assert after is not None
            group = key_group(after[1], self._groups)
        packed: bytes = msgpack.packb((group, None if after is None else tuple(map(encode_key, after))))
        return packed

    def end(self) -> Scan | None:
        """Ask for no more pages. Returns the request that frees what the server keeps, None if it keeps nothing."""
        view, self._view = self._view, b""
        self.over = True
        return self._request._replace(view=view, options={**self.query.options, "limit": 0}) if view else None

    def failed(self, error: QueryError) -> float:
        """A page failed. Returns the pause in seconds after which to ask for it again, or raises the error."""
        self._failures += 1
        if not isinstance(error, Unavailable) or self._failures >= TRIES:
            raise error
        return PAUSE_S * self._failures

    def take(self, page: Page, known: CachedState) -> Iterator[ScannedEntry[Any] | QueryError]:
        """The entries of a page. The scan goes on after the page at once, the cursor with each entry."""
        self._failures = 0
        self._groups = known.max_parallelism
        self.epoch = page.epoch
        self.count += page.selected
        if self._left is not None:
            self._left -= page.selected
        self._view = page.view
        after = (page.next_group, page.after)
        ends = page.next_group >= self._request.stop_group
        if not ends:
            self._request = self._request._replace(start_group=page.next_group, after=page.after)
        self.over = ends or self._left == 0
        return self._entries(page, known, after)

    def _entries(
        self, page: Page, known: CachedState, end: tuple[int, tuple[Namespace, Key] | None]
    ) -> Iterator[ScannedEntry[Any] | QueryError]:
        spaces = page.namespaces or (None,) * len(page.keys)
        isolation, results = self.query.isolation, page.results
        for index, (namespace, key) in enumerate(zip(spaces, page.keys, strict=True)):
            self._place = (None, (namespace, key))
            result = results[index] if results else None
            if isinstance(result, int):
                yield query_error(result, {"key": repr(key)})
            else:
                view = None if result is None else known.maker.view(result, page.epoch, isolation)
                yield ScannedEntry(key, namespace, view)
        self._place = end


class ScanPosition(Generic[View]):
    """What both kinds of scans tell of themselves."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._entries: Iterator[ScannedEntry[Any] | QueryError] = iter(())
        #: What each entry goes through: that of a typed handle gives its view the declared type.
        self.typed: Callable[[ScannedEntry[Any]], ScannedEntry[View]] | None = None

    @property
    def cursor(self) -> bytes:
        """Where the scan is: pass it to a later `scan` of the same state, which goes on after the last entry given."""
        return self._scanner.cursor

    @property
    def epoch(self) -> int | None:
        """The epoch of the entries that come now, None before the first page. Each owner of the state has its own."""
        return self._scanner.epoch

    def _next(self) -> ScannedEntry[View] | None:
        """The next entry of the page, None at its end. Raises the failure of an entry; the one after it comes next."""
        found = next(self._entries, None)
        if isinstance(found, QueryError):
            raise found
        return found if found is None or self.typed is None else self.typed(found)


def key_only(key: Key) -> tuple[Column, ...]:
    """The prefix that selects one key."""
    check_key(key)
    return key if isinstance(key, tuple) else (key,)
