"""The look-aside cache of a client: which gets it answers, and which answers of servers it holds.

Rules of this module: no sockets, no threads, no asyncio. Each state that is asked for has a `Following`, which says
when the values that are held were current. A get is answered when that is no longer ago than its bound, and the epoch
is late enough. Everything else is asked of a server, as if there were no cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from qstate.errors import ClosedError, ConfigError, WrongKeyType
from qstate.keys import Key, check_key
from qstate.runtime.client.caching.following import Following
from qstate.runtime.client.caching.kept_values import CacheStatistics, ClientCache, KeptValues
from qstate.runtime.client.operations import Links, Operation
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.client.state_cache import CachedState

__all__ = ["MISS", "CommittedCache", "check_cache", "with_misses"]

#: In the place of a view: the server is to be asked.
MISS: Any = object()
#: Gets with a lower bound are not answered: an answer of a server is nearly as old when it arrives.
LEAST_BOUND_S = 0.02
#: How often the thread that asks looks for answers to polls, at most.
LOOK_S = 0.0005


def with_misses(found: Sequence[Any], asked: Sequence[Any]) -> list[Any]:
    """What was found, with the server's answers in the places of the misses."""
    rest = iter(asked)
    return [next(rest) if one is MISS else one for one in found]


class CommittedCache:
    """The cache of one client.

    `links` are those of its subscriptions. `locked` gives what holds them for one thread; with `look`, the answers that
    have arrived are taken by the thread that asks, as no other thread does.
    """

    def __init__(
        self,
        settings: ClientCache,
        links: Links[Any],
        locked: Callable[[], AbstractContextManager[Any]],
        look: Callable[[Operation], object] | None = None,
    ) -> None:
        self._settings = settings
        self._links = links
        self._locked = locked
        self._look = look
        self._look_at = -math.inf
        self._values = KeptValues(settings)
        self._followed: dict[tuple[str, str], Following] = {}
        self._hits = self._misses = 0

    def statistics(self) -> CacheStatistics:
        """What it has done and holds."""
        with self._locked():
            return CacheStatistics(self._hits, self._misses, len(self._values), self._values.bytes)

    def find(self, query: Query, keys: Sequence[Key]) -> list[Any]:
        """For each key its view, None when the state has no value for it, or `MISS`."""
        options = query.options
        asked: Any = options.get("max_staleness_ms")
        bound_s = self._settings.max_staleness_s if asked is None else asked / 1000
        if query.isolation != COMMITTED or bound_s < LEAST_BOUND_S:
            return [MISS] * len(keys)
        least: Any = options.get("min_epoch", -1)
        with self._locked():
            now = time.monotonic()
            following = self._following(query)
            if following is None:
                return [MISS] * len(keys)
            following.ask(bound_s, now)
            if self._look is not None and now >= self._look_at:
                self._look_at = now + LOOK_S
                self._look(following)
            found = [self._one(following, query, key, now - bound_s, least) for key in keys]
            misses = found.count(MISS)
            self._misses += misses
            self._hits += len(found) - misses
            return found

    def keep(self, query: Query, keys: Sequence[Key], answer: Any, known: CachedState) -> None:
        """Hold the answers of a server to a committed get, if the changes after them will come."""
        with self._locked():
            following = self._followed.get((query.job, query.state))
            if following is None or following.known is None:
                return
            following.met(known)
            if "ttl_ms" not in known.location.state:
                following.keep(query.namespace, keys, answer.epochs, answer.results)

    def _following(self, query: Query) -> Following | None:
        names = (query.job, query.state)
        if type(names[0]) is not str or type(names[1]) is not str:
            return None  # the request of the get says why
        following = self._followed.get(names)
        if following is None:
            following = Following(self._links, names, self._values)
            try:
                self._links.start(following)
            except ClosedError:
                return None
            self._followed[names] = following
        return None if following.finished else following

    def _one(self, following: Following, query: Query, key: Key, since: float, least: int) -> Any:
        known = following.known
        if known is None or (type(key) is not known.key_class and not _is_key(key)):
            return MISS
        if query.namespace is not None and not _is_key(query.namespace):
            return MISS
        current = following.current(key)
        if current is None or current[0] < since:
            return MISS
        kept = self._values.used(following.place(query.namespace, key))
        if kept is None:
            return MISS
        epoch = max(kept.epoch, current[1])
        if epoch < least:
            return MISS
        if kept.data is None:
            return None
        if kept.view is None or kept.view.epoch != epoch:
            kept.view = known.maker.view(kept.data, epoch, COMMITTED)
        return kept.view


def _is_key(key: Any) -> bool:
    try:
        check_key(key)
    except WrongKeyType:
        return False
    return True


def check_cache(cache: Any) -> ClientCache | None:
    """Return the settings. Raises `ConfigError`."""
    if cache is not None and not isinstance(cache, ClientCache):
        raise ConfigError(f"cache must be a qstate.client.ClientCache, as in cache=ClientCache(), got {cache!r}")
    return cache
