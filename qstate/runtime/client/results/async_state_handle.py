"""The handle of one state, for the asyncio client: the client's calls with the job and the state filled in.

Rules of this module: it calls the client and adds nothing to what the client does. It knows no requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

from qstate.errors import QueryError
from qstate.keys import Column, Key, Namespace
from qstate.runtime.client.results.async_results import AsyncScanResults, AsyncSubscription
from qstate.runtime.client.results.typed_views import NamedState
from qstate.runtime.client.results.value_parts import MapPage
from qstate.views import ReadOnlyState

__all__ = ["AsyncStateHandle"]

View = TypeVar("View", bound=ReadOnlyState)


class AsyncStateHandle(NamedState[View]):
    """One state of one job, read with one isolation: `AsyncQueryableStateClient.state` makes it.

        last = client.state("alerts", "lastTemperature")
        view = await last.get("JFK")

    Its methods are those of the client, without the arguments `job`, `state` and `isolation`; `options` are the
    client's other keyword arguments. It raises what the client raises. Any number of tasks may share it, and it
    lives as long as the client.
    """

    __slots__ = ()

    async def get(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of the key's value, None without one: see `AsyncQueryableStateClient.get`."""
        found = await self._client.get(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    @overload
    async def get_many(
        self, keys: Iterable[Key], namespace: Namespace = None, *, return_errors: Literal[False] = False, **options: Any
    ) -> dict[Key, View | None]: ...

    @overload
    async def get_many(
        self, keys: Iterable[Key], namespace: Namespace = None, *, return_errors: bool, **options: Any
    ) -> dict[Key, View | QueryError | None]: ...

    async def get_many(self, keys: Iterable[Key], namespace: Namespace = None, **options: Any) -> Any:
        """The view, or None, of each key: see `AsyncQueryableStateClient.get_many`."""
        found = await self._client.get_many(self._job, self._name, keys, namespace, self._isolation, **options)
        return self._typed.views(found)

    async def get_entries(
        self, key: Key, map_keys: Iterable[Key], namespace: Namespace = None, **options: Any
    ) -> View | None:
        """The view of some entries of the key's map, None without any: see `AsyncQueryableStateClient.get_entries`."""
        options["isolation"] = self._isolation
        found = await self._client.get_entries(self._job, self._name, key, map_keys, namespace, **options)
        return self._typed.view(found)

    async def get_page(self, key: Key, namespace: Namespace = None, **options: Any) -> MapPage[View]:
        """The next entries of the key's map: see `AsyncQueryableStateClient.get_page`."""
        found = await self._client.get_page(self._job, self._name, key, namespace, self._isolation, **options)
        return MapPage(self._typed.view(found.view), found.after)

    async def get_slice(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of some elements of the key's list, None without any: see `AsyncQueryableStateClient.get_slice`."""
        found = await self._client.get_slice(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    async def get_size(self, key: Key, namespace: Namespace = None, **options: Any) -> int:
        """The number of elements of the key's list or of entries of its map."""
        found: int = await self._client.get_size(self._job, self._name, key, namespace, self._isolation, **options)
        return found

    async def get_large(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of the key's value, read in pieces: see `AsyncQueryableStateClient.get_large`."""
        found = await self._client.get_large(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    def scan(self, prefix: str | bytes | tuple[Column, ...] | None = None, **options: Any) -> AsyncScanResults[View]:
        """Iterate over the keys that have a value: see `AsyncQueryableStateClient.scan`."""
        found: AsyncScanResults[View] = self._client.scan(self._job, self._name, prefix, self._isolation, **options)
        found.typed = self._typed.entry
        return found

    async def count(self, prefix: str | bytes | tuple[Column, ...] | None = None, **options: Any) -> int:
        """How many keys `scan` would visit. A key counts once in each namespace."""
        found: int = await self._client.count(self._job, self._name, prefix, self._isolation, **options)
        return found

    async def namespaces(self, key: Key, **options: Any) -> list[Namespace]:
        """The namespaces in which the key has a value; None is the void namespace."""
        found: list[Namespace] = await self._client.namespaces(self._job, self._name, key, self._isolation, **options)
        return found

    def subscribe(self, key: Key | None = None, **options: Any) -> AsyncSubscription:
        """Every committed change of one key, some keys or all keys: see `QueryableStateClient.subscribe`."""
        found: AsyncSubscription = self._client.subscribe(self._job, self._name, key, **options)
        found.typed = self._typed.batch
        return found
