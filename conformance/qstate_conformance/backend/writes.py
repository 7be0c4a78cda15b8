"""One write of a job, done to a backend and to the model alike, and programs of them.

Rules of this module: a write is a plain value that prints as the call it is, so a failing program can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple

from qstate.backends import StateBackend, StateTable, Timer
from qstate.descriptors import StateKind, TimerDescriptor
from qstate.keys import Key, Namespace
from qstate_conformance.backend.model import Model, Place
from qstate_conformance.backend.states import STATES

__all__ = ["Write", "apply"]

_CONTAINERS = (StateKind.LIST, StateKind.MAP)


class Write(NamedTuple):
    """`operation` is a method of `StateTable`, or `change_in_place`: change what `get` gave, and put it again.

    For timers it is `add` or `remove`; its argument is the time.
    """

    operation: str
    state: str
    namespace: Namespace
    key: Key
    arguments: tuple[Any, ...] = ()

    @property
    def place(self) -> Place:
        return self.state, self.namespace, self.key

    def to_backend(self, backend: StateBackend) -> None:
        descriptor = STATES[self.state]
        if isinstance(descriptor, TimerDescriptor):
            (time,) = self.arguments
            getattr(backend.timers(descriptor), self.operation)(Timer(time, self.namespace, self.key))
        else:
            self._to_table(backend)

    def _to_table(self, backend: StateBackend) -> None:
        table = backend.table(STATES[self.state], self.namespace)
        arguments = deepcopy(self.arguments)  # what is put belongs to the backend
        if self.operation == "change_in_place":
            _change_in_place(table, self.key, *arguments)
        elif self.operation == "put_many":
            table.put_many(*arguments)
        else:
            getattr(table, self.operation)(self.key, *arguments)

    def to_model(self, model: Model) -> None:
        if self.operation == "put_many":
            for key, value in zip(*self.arguments, strict=True):
                model.put((self.state, self.namespace, key), value)
        elif self.operation == "add":
            model.map_put(self.place, self.arguments[0], True)
        elif self.operation == "remove":
            model.map_remove(self.place, *self.arguments)
        elif self.operation == "change_in_place":
            found = deepcopy(model.get(self.place))
            if _changed(found, *self.arguments):
                model.put_contents(self.place, found)
        elif self.operation == "put" and STATES[self.state].kind in _CONTAINERS:
            model.put_contents(self.place, *self.arguments)
        else:
            getattr(model, self.operation)(self.place, *self.arguments)


def apply(writes: Iterable[Write], backend: StateBackend, model: Model) -> None:
    """Do the writes to both."""
    for write in writes:
        write.to_backend(backend)
        write.to_model(model)


def _change_in_place(table: StateTable, key: Key, element: Any) -> None:
    found = table.get(key)
    if _changed(found, element):
        table.put(key, found)


def _changed(found: Any, element: Any) -> bool:
    """Change a list or dict in place: lists lose their first element, too; anything else stays as it is."""
    if isinstance(found, list):
        found[:] = [*found[1:], element]
        return True
    if isinstance(found, dict):
        found["changed in place"] = element
        return True
    return False
