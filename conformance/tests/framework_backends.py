"""Backends for the framework's tests: one that breaks a known law, and some that cannot be used.

Rules of this module: the defects that the suite must catch are in `tests.defects`; these only make a run fail, stop
or report the calls that it got.
"""

from __future__ import annotations

from typing import Any, ClassVar

from qstate.backends import BackendContext, Capability, HeapBackend, StateTable
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace

#: A law that takes milliseconds, and that `Forgetful` breaks.
BROKEN_LAW = "backend.tables.get_gives_what_was_put"
#: A law that takes milliseconds, and that `Forgetful` keeps.
KEPT_LAW = "backend.tables.a_key_without_a_value_reads_as_none"

#: A law of backends that claim snapshot reads, which the heap does not.
SNAPSHOT_LAW = "backend.concurrent_reads.a_live_value_is_never_torn"


class _Wrapped:
    """A table that is another one but for `put`."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _ForgetfulTable(_Wrapped):
    def put(self, key: Key, value: Any) -> None:
        if value == "" or not isinstance(value, str):
            self._table.put(key, value)


class Forgetful(HeapBackend):
    """Loses every text but the empty one."""

    name = "forgetful"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return _ForgetfulTable(super().table(descriptor, namespace))


class _RaisingTable(_Wrapped):
    def put(self, key: Key, value: Any) -> None:
        return self._kept(value)

    def _kept(self, value: Any) -> None:
        try:
            self._looked_up(value)
        except KeyError as exc:
            raise LookupError("no room") from exc

    def _looked_up(self, value: Any) -> None:
        raise KeyError(type(value).__name__)


class Raising(HeapBackend):
    """Fails at every put, because something of its own failed before."""

    name = "raising"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return _RaisingTable(super().table(descriptor, namespace))


class _NotingTable(_Wrapped):
    def put(self, key: Key, value: Any) -> None:
        Noting.puts.append(repr((key, value)))
        self._table.put(key, value)


class Noting(HeapBackend):
    """Notes everything that it is given."""

    name = "noting"
    puts: ClassVar[list[str]] = []

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return _NotingTable(super().table(descriptor, namespace))


class Boastful(HeapBackend):
    """Claims to be larger than memory."""

    name = "boastful"
    capabilities = HeapBackend.capabilities | {Capability.LARGER_THAN_MEMORY}


class Interrupting(HeapBackend):
    """Stands for somebody who presses Ctrl-C while a law runs."""

    name = "interrupting"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        raise KeyboardInterrupt


class Unopenable(HeapBackend):
    name = "unopenable"

    def __init__(self, context: BackendContext) -> None:
        raise RuntimeError("no room on the disk")


def make_backend(context: BackendContext) -> HeapBackend:
    return HeapBackend(context)


def make_nothing(context: BackendContext) -> None:
    return None


NOT_A_BACKEND = 42
