"""The state that a handle reads, and the type of view that a caller declares, such as `ReadOnlyValueState[float]`.

Rules of this module: names and a declaration in; views in, views of the declared type out. It knows no requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar, get_args, get_origin

from qstate.errors import ConfigError, SerializationError
from qstate.evolution.declared_values import DeclaredValues
from qstate.runtime.client.arguments import check_names, query_of
from qstate.runtime.client.scanning import ScannedEntry
from qstate.runtime.client.subscriptions import ChangeBatch
from qstate.values.html_tables import html_table
from qstate.views import VIEW_OF, ReadOnlyState

__all__ = ["NamedState", "TypedViews"]

View = TypeVar("View", bound=ReadOnlyState)


class TypedViews(Generic[View]):
    """Gives the views of one state the declared type. Raises `ConfigError` for a declaration that no view can have."""

    def __init__(self, declared: type[View], job: str, state: str) -> None:
        origin = get_origin(declared) or declared
        if origin not in (*VIEW_OF.values(), ReadOnlyState):
            raise ConfigError(
                f"view must be the type of the state's views, such as ReadOnlyValueState[float], got {declared!r}"
            )
        self._view: Any = origin
        self._where = f"state {state!r} of job {job!r}"
        parts = [DeclaredValues(one, self._where) for one in get_args(declared)]
        self._values = parts.pop() if parts else None
        self._keys = parts.pop() if parts else None

    def view(self, found: ReadOnlyState | None) -> View | None:
        """The view, of the declared type. Raises `SerializationError` for a view of another kind of state.

        A value that does not have the declared type raises when it is read.
        """
        if found is None:
            return None
        if not isinstance(found, self._view):
            raise SerializationError(
                f"{self._where} is a {found.kind.value} state, which is not read as {self._view.__name__}: declare "
                f"{type(found).__name__}"
            )
        return self._read_as(found)  # type: ignore[return-value]

    def views(self, found: dict[Any, Any]) -> dict[Any, Any]:
        """The views of many keys; errors stay."""
        return {key: self.view(one) if isinstance(one, ReadOnlyState) else one for key, one in found.items()}

    def entry(self, found: ScannedEntry[Any]) -> ScannedEntry[View]:
        """The entry of a scan."""
        return found if found.view is None else found._replace(view=self.view(found.view))

    def batch(self, found: ChangeBatch) -> ChangeBatch:
        """The changes of a subscription, which have views of values, elements and entries."""
        if self._values is None:
            return found
        map_key = None if self._keys is None else self._keys.read
        return replace(found, changes=[change.read_as(self._read_as, map_key) for change in found.changes])

    def _read_as(self, view: ReadOnlyState) -> ReadOnlyState:
        return view if self._values is None else view.read_as(self._values, self._keys)


class NamedState(Generic[View]):
    """What the handles of both clients are: one state of one job, its isolation and the type of its views.

    Raises `ConfigError` for names, an isolation or a type that no state can have.
    """

    __slots__ = ("_client", "_isolation", "_job", "_name", "_typed")

    def __init__(self, client: Any, names: tuple[str, str], view: type[View], isolation: str) -> None:
        check_names(*names)
        query_of(*names, None, isolation)
        self._client = client
        self._job, self._name = names
        self._typed = TypedViews(view, *names)
        self._isolation = isolation

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._job

    @property
    def name(self) -> str:
        """The queryable name of the state."""
        return self._name

    @property
    def isolation(self) -> str:
        """The isolation of all reads: `live` or `committed`. Subscriptions give what is committed in any case."""
        return self._isolation

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} of job {self._job!r}, {self._isolation}>"

    def _repr_html_(self) -> str:
        """The handle as a table, for notebooks. It asks the job nothing."""
        return html_table(
            type(self).__name__, ["state", "job", "isolation"], [[self._name, self._job, self._isolation]]
        )
