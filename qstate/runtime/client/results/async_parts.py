"""The calls of the asyncio client that read parts of one value.

Rules of this module: it says what to ask for and gives the views; the client that inherits it sends the requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from qstate.keys import Key, Namespace
from qstate.protocol.messages import Part
from qstate.runtime.client.query import LIVE
from qstate.runtime.client.results.value_parts import DEFAULT_LIMIT, LARGEST, AskedPart, MapPage, Pieces
from qstate.runtime.client.state_cache import CachedState
from qstate.views import ReadOnlyListState, ReadOnlyMapState

__all__ = ["AsyncParts"]


class AsyncParts(ABC):
    """Reads parts of the value of one key, without the rest of it.

    `demands` are the other keyword arguments of `get`: `timeout_s`, `min_epoch`, `max_staleness_s` and `wait_s`. Each
    method raises what `get` raises, and `UnsupportedQuery` for a state of another kind.
    """

    @abstractmethod
    async def _part(self, asked: AskedPart) -> tuple[Part, CachedState]:
        """Send the request. Returns its answer, and what is known of the state."""

    async def get_entries(
        self,
        job: str,
        state: str,
        key: Key,
        map_keys: Iterable[Key],
        namespace: Namespace = None,
        *,
        isolation: str = LIVE,
        **demands: Any,
    ) -> ReadOnlyMapState[Any, Any] | None:
        """The view of some entries of the key's map: of those of `map_keys` that are there. None without any."""
        asked = AskedPart.of((job, state), key, namespace, isolation, demands).entries(map_keys)
        view: ReadOnlyMapState[Any, Any] | None = asked.view(*(await self._part(asked)))
        return view

    async def get_page(
        self,
        job: str,
        state: str,
        key: Key,
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        after: Key | None = None,
        limit: int = DEFAULT_LIMIT,
        **demands: Any,
    ) -> MapPage[ReadOnlyMapState[Any, Any]]:
        """At most `limit` entries of the key's map that come after the map key `after`, in an order of their own.

        The order is that of the encoded map keys, the same at every backend. Pages may be of different epochs.
        """
        asked = AskedPart.of((job, state), key, namespace, isolation, demands).page(after, limit)
        part, known = await self._part(asked)
        return MapPage(asked.view(part, known), part.after)

    async def get_slice(
        self,
        job: str,
        state: str,
        key: Key,
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        start: int = 0,
        stop: int | None = None,
        **demands: Any,
    ) -> ReadOnlyListState[Any] | None:
        """The view of the elements of the key's list from `start` to `stop` (exclusive). None without any.

        Positions begin with 0; without `stop`, it has all elements from `start` on.
        """
        asked = AskedPart.of((job, state), key, namespace, isolation, demands).slice(start, stop)
        view: ReadOnlyListState[Any] | None = asked.view(*(await self._part(asked)))
        return view

    async def get_size(
        self, job: str, state: str, key: Key, namespace: Namespace = None, isolation: str = LIVE, **demands: Any
    ) -> int:
        """The number of elements of the key's list or of entries of its map, 0 without a value."""
        asked = AskedPart.of((job, state), key, namespace, isolation, demands).size()
        part, _ = await self._part(asked)
        return part.total

    async def get_large(
        self,
        job: str,
        state: str,
        key: Key,
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        max_bytes: int = LARGEST,
        **demands: Any,
    ) -> Any:
        """The view of the key's whole value, read in pieces: for a value that is larger than a frame. None without one.

        The pieces are of one version of the value: the reading begins again when the value changes. `timeout_s` is the
        time limit of each piece. Raises `ConcurrentModification` when the value has changed five times, `TooLarge` when
        it has more than `max_bytes` bytes.
        """
        pieces = Pieces(AskedPart.of((job, state), key, namespace, isolation, demands), max_bytes)
        while not pieces.take(*(await self._part(pieces.next))):
            pass
        return pieces.view
