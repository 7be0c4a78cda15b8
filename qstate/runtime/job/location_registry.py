"""The queryable states of one job and the owners of their key groups: the data of the location oracle.

Rules of this module: bookkeeping for the job manager, with no sockets, threads or clocks. A queryable name belongs to
one operator at a time.

When an owner is lost, many proxies ask for the same table. So its pickle is made once for all that ask until an owner
changes. Of a job with 10,000 owners, table and pickle take tens of milliseconds, in which the driver does nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qstate.errors import JobError, UnknownState
from qstate.runtime.routing.location import LocationTable, Owner

__all__ = ["LocationRegistry"]


@dataclass(slots=True)
class _RegisteredState:
    operator: str
    state: Mapping[str, Any]
    owners: dict[int, tuple[int, Owner]] = field(default_factory=dict)
    #: The subtasks that each task manager owns here.
    subtasks: dict[int, set[int]] = field(default_factory=dict)


class LocationRegistry:
    """Names, descriptions and owners. Not thread-safe: the job manager holds its lock."""

    def __init__(self, job: str, max_parallelism: int) -> None:
        self._job = job
        self._max_parallelism = max_parallelism
        self._states: dict[str, _RegisteredState] = {}
        #: By the index of a standby: the states that it has, by name.
        self._standbys: dict[int, Mapping[str, LocationTable]] = {}
        #: By the name of a state: what was asked for since its owners changed.
        self._pickled: dict[str, bytes] = {}

    def register(self, operator: str, states: Sequence[Mapping[str, Any]]) -> None:
        """Register all queryable states of an operator. Raises `JobError` when another operator has one of the names.

        A state whose description has changed loses its owners, because they hold it in the old form.
        """
        described = {str(state["name"]): dict(state) for state in states}
        for name in described:
            known = self._states.get(name)
            if known is not None and known.operator != operator:
                raise JobError(
                    f"two states have the queryable name {name!r}: one of operator {known.operator!r} and one of "
                    f"operator {operator!r}; queryable names are unique in a job, so rename one of them. If both are "
                    "the same operator, declared twice (a cell that was run again), give it a uid"
                )
        for name in [name for name, known in self._states.items() if known.operator == operator]:
            if name not in described:  # of an earlier declaration of the operator
                del self._states[name]
                self._changed(name)
        for name, state in described.items():
            known = self._states.get(name)
            if known is None or known.state != state:
                self._states[name] = _RegisteredState(operator, state)
                self._changed(name)

    def publish(self, state: Mapping[str, Any], subtask: int, manager: int, owner: Owner) -> None:
        """A task manager serves a subtask's part of a registered state. Ignored when the state has another description
        now."""
        name = state["name"]
        known = self._states.get(name)
        if known is None or known.state != state:
            return
        before = known.owners.get(subtask)
        if before is not None:
            known.subtasks[before[0]].discard(subtask)
        known.owners[subtask] = (manager, owner)
        known.subtasks.setdefault(manager, set()).add(subtask)
        self._changed(name)

    def publish_standby(self, standby: int, tables: Mapping[str, LocationTable]) -> None:
        """A standby serves the committed state of these tables now, and no other."""
        before = self._standbys.get(standby, {})
        self._standbys[standby] = tables
        for name in {*before, *tables}:
            self._changed(name)

    def withdraw(self, manager: int) -> None:
        """A task manager or standby is gone: remove all owners that it had."""
        for name in self._standbys.pop(manager, {}):
            self._changed(name)
        for name, registered in self._states.items():
            for subtask in registered.subtasks.pop(manager, ()):
                del registered.owners[subtask]
                self._changed(name)

    def locate(self, name: str) -> LocationTable:
        """The owners of a state, without those of key groups that no task manager serves. Raises `UnknownState`.

        A standby counts when it has the state by the same description: values of another one have another form.
        """
        registered = self._states.get(name)
        if registered is None:
            raise UnknownState(job=self._job, state=name)
        owners = tuple(owner for _, (_, owner) in sorted(registered.owners.items()))
        tables = (tables[name] for tables in self._standbys.values() if name in tables)
        same = (table for table in tables if table.fingerprint == registered.state.get("fingerprint"))
        standbys = tuple(owner for table in same for owner in table.owners)
        return LocationTable(self._job, registered.state, self._max_parallelism, owners, standbys)

    def pickled(self, name: str) -> bytes:
        """The pickle of what `locate` returns."""
        found = self._pickled.get(name)
        if found is None:
            found = self._pickled[name] = pickle.dumps(self.locate(name), protocol=pickle.HIGHEST_PROTOCOL)
        return found

    def _changed(self, name: str) -> None:
        self._pickled.pop(name, None)

    def describe(self) -> list[Mapping[str, Any]]:
        return [registered.state for _, registered in sorted(self._states.items())]
