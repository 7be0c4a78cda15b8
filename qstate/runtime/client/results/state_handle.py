"""The handle of one state, for the synchronous client: the client's calls with the job and the state filled in.

Rules of this module: it calls the client and adds nothing to what the client does. It knows no requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

from qstate.errors import QueryError
from qstate.keys import Column, Key, Namespace
from qstate.runtime.client.results.sync_results import ScanResults, Subscription
from qstate.runtime.client.results.typed_views import NamedState
from qstate.runtime.client.results.value_parts import MapPage
from qstate.views import ReadOnlyState

__all__ = ["StateHandle"]

View = TypeVar("View", bound=ReadOnlyState)


class StateHandle(NamedState[View]):
    """One state of one job, read with one isolation: `QueryableStateClient.state` makes it.

        last = client.state("alerts", "lastTemperature")
        last["JFK"].value()

    Its methods are those of the client, without the arguments `job`, `state` and `isolation`; `options` are the
    client's other keyword arguments. It raises what the client raises. Any number of threads may share it, and it
    lives as long as the client.
    """

    __slots__ = ()

    def __getitem__(self, key: Key) -> View:
        """The view of the key's value in the void namespace. Raises `KeyError` without one, and what `get` raises."""
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    # Without this, Python would iterate by the keys 0, 1, 2 and so on.
    __iter__ = None

    def get(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of the key's value, None without one: see `QueryableStateClient.get`."""
        found = self._client.get(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    @overload
    def get_many(
        self, keys: Iterable[Key], namespace: Namespace = None, *, return_errors: Literal[False] = False, **options: Any
    ) -> dict[Key, View | None]: ...

    @overload
    def get_many(
        self, keys: Iterable[Key], namespace: Namespace = None, *, return_errors: bool, **options: Any
    ) -> dict[Key, View | QueryError | None]: ...

    def get_many(self, keys: Iterable[Key], namespace: Namespace = None, **options: Any) -> Any:
        """The view, or None, of each key: see `QueryableStateClient.get_many`."""
        found = self._client.get_many(self._job, self._name, keys, namespace, self._isolation, **options)
        return self._typed.views(found)

    def get_entries(
        self, key: Key, map_keys: Iterable[Key], namespace: Namespace = None, **options: Any
    ) -> View | None:
        """The view of some entries of the key's map, None without any: see `QueryableStateClient.get_entries`."""
        options["isolation"] = self._isolation
        found = self._client.get_entries(self._job, self._name, key, map_keys, namespace, **options)
        return self._typed.view(found)

    def get_page(self, key: Key, namespace: Namespace = None, **options: Any) -> MapPage[View]:
        """The next entries of the key's map: see `QueryableStateClient.get_page`."""
        found = self._client.get_page(self._job, self._name, key, namespace, self._isolation, **options)
        return MapPage(self._typed.view(found.view), found.after)

    def get_slice(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of some elements of the key's list, None without any: see `QueryableStateClient.get_slice`."""
        found = self._client.get_slice(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    def get_size(self, key: Key, namespace: Namespace = None, **options: Any) -> int:
        """The number of elements of the key's list or of entries of its map."""
        found: int = self._client.get_size(self._job, self._name, key, namespace, self._isolation, **options)
        return found

    def get_large(self, key: Key, namespace: Namespace = None, **options: Any) -> View | None:
        """The view of the key's value, read in pieces: see `QueryableStateClient.get_large`."""
        found = self._client.get_large(self._job, self._name, key, namespace, self._isolation, **options)
        return self._typed.view(found)

    def scan(self, prefix: str | bytes | tuple[Column, ...] | None = None, **options: Any) -> ScanResults[View]:
        """Iterate over the keys that have a value: see `QueryableStateClient.scan`."""
        found: ScanResults[View] = self._client.scan(self._job, self._name, prefix, self._isolation, **options)
        found.typed = self._typed.entry
        return found

    def count(self, prefix: str | bytes | tuple[Column, ...] | None = None, **options: Any) -> int:
        """How many keys `scan` would visit. A key counts once in each namespace."""
        found: int = self._client.count(self._job, self._name, prefix, self._isolation, **options)
        return found

    def namespaces(self, key: Key, **options: Any) -> list[Namespace]:
        """The namespaces in which the key has a value; None is the void namespace."""
        found: list[Namespace] = self._client.namespaces(self._job, self._name, key, self._isolation, **options)
        return found

    def subscribe(self, key: Key | None = None, **options: Any) -> Subscription:
        """Every committed change of one key, some keys or all keys: see `QueryableStateClient.subscribe`."""
        found: Subscription = self._client.subscribe(self._job, self._name, key, **options)
        found.typed = self._typed.batch
        return found
