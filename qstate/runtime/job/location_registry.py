"""The queryable states of one job and who owns their key groups: what the location oracle answers from.

Rules of this module: plain bookkeeping, told by the job manager, with no sockets, threads or clocks. A queryable
name belongs to one operator at a time.
"""

from __future__ import annotations

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


class LocationRegistry:
    """Names, descriptions and owners. Not thread-safe: the job manager holds its lock."""

    def __init__(self, job: str, max_parallelism: int) -> None:
        self._job = job
        self._max_parallelism = max_parallelism
        self._states: dict[str, _RegisteredState] = {}

    def register(self, operator: str, states: Sequence[Mapping[str, Any]]) -> None:
        """Reserve the queryable names of an operator, all that it has now; `JobError` when another one has a name.

        A state that is described in another way than before has no owners any more: what they hold is of another form.
        """
        described = {str(state["name"]): dict(state) for state in states}
        for name in described:
            known = self._states.get(name)
            if known is not None and known.operator != operator:
                raise JobError(
                    f"two states have the queryable name {name!r}: one of operator {known.operator!r} and one of "
                    f"operator {operator!r}; queryable names are unique in a job, so rename one of them"
                )
        for name in [name for name, known in self._states.items() if known.operator == operator]:
            if name not in described:  # of an earlier declaration of the operator
                del self._states[name]
        for name, state in described.items():
            known = self._states.get(name)
            if known is None or known.state != state:
                self._states[name] = _RegisteredState(operator, state)

    def publish(self, state: Mapping[str, Any], subtask: int, manager: int, owner: Owner) -> None:
        """A task manager serves a subtask's part of a claimed state; none of it is located if it is described in
        another way by now."""
        known = self._states.get(state["name"])
        if known is not None and known.state == state:
            known.owners[subtask] = (manager, owner)

    def withdraw(self, manager: int) -> None:
        """A task manager is gone, and with it all that it served."""
        for registered in self._states.values():
            registered.owners = {subtask: at for subtask, at in registered.owners.items() if at[0] != manager}

    def locate(self, name: str) -> LocationTable:
        """The owners of a state; key groups nobody serves at the moment are missing. `UnknownState` if unclaimed."""
        registered = self._states.get(name)
        if registered is None:
            raise UnknownState(job=self._job, state=name)
        owners = tuple(owner for _, (_, owner) in sorted(registered.owners.items()))
        return LocationTable(self._job, registered.state, self._max_parallelism, owners)

    def describe(self) -> list[Mapping[str, Any]]:
        return [registered.state for _, registered in sorted(self._states.items())]
