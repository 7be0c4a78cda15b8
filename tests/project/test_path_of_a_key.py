"""The length of the read path: a get of one key passes through so few modules that a reader can follow it.

A module counts when one of its functions runs that holds the key: as an argument or a result, in a tuple, a list, a
dict or bytes, or as the keys of a message or an operation.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import qstate
from qstate.backends import Isolation, open_backend
from qstate.client import QueryableStateClient
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import UnknownState
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.serving import ClientProxy, LocationTable, Owner, StateInstance, StateRegistry, StateServer

PACKAGE = Path(qstate.__file__).parent
MOST_MODULES = 18
JOB, STATE, KEY = "weather", "lastTemperature", "JFK"
MAX_PARALLELISM = 128
EVERYTHING = KeyGroupRange(0, MAX_PARALLELISM)
DESCRIPTOR = ValueStateDescriptor("latest", float).queryable(STATE)
#: How many containers may be around the key.
DEPTH = 5


class Oracle:
    """Finds the one state of a registry that one server serves."""

    def __init__(self, registry: StateRegistry, server: StateServer) -> None:
        self._registry = registry
        self._server = server

    def locate(self, state: str, reply: Callable[[Any], None]) -> None:
        ((state_id, instance),) = self._registry.instances().items()
        owner = Owner(instance.key_groups, *self._server.address, state_id)
        found = LocationTable(JOB, instance.describe(), instance.max_parallelism, (owner,))
        reply(found if state == STATE else UnknownState(state=state))

    def describe(self, reply: Callable[[Any], None]) -> None:
        reply([instance.describe() for instance in self._registry.instances().values()])


class Trace:
    """Notes the modules through which the key passes, in order, while it is `open`. It sees all threads begun later."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.open = False

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.open or event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names] if event == "call" else [argument]
        if any(holds_the_key(value) for value in values):
            self.modules[str(Path(code.co_filename).relative_to(PACKAGE))] = None


def holds_the_key(value: Any, depth: int = DEPTH) -> bool:
    if isinstance(value, str):
        return value == KEY
    if isinstance(value, bytes | bytearray | memoryview):
        return KEY.encode() in bytes(value)
    if not depth:
        return False
    if isinstance(value, dict):
        return any(holds_the_key(part, depth - 1) for entry in value.items() for part in entry)
    if isinstance(value, tuple | list):
        return any(holds_the_key(part, depth - 1) for part in value)
    keys = [getattr(value, name, None) for name in ("keys", "_keys")]
    return any(holds_the_key(part, depth - 1) for part in keys if isinstance(part, tuple | list))


@contextmanager
def observed(path: Trace) -> Iterator[None]:
    threading.setprofile(path.note)
    sys.setprofile(path.note)
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)


def test_a_get_of_one_key_passes_through_few_modules(tmp_path: Path) -> None:
    path, registry = Trace(), StateRegistry()
    with (
        observed(path),
        open_backend("heap", key_groups=EVERYTHING, max_parallelism=MAX_PARALLELISM, directory=tmp_path) as backend,
        StateServer(registry) as server,
        ClientProxy(local=server) as proxy,
        QueryableStateClient(*proxy.address) as client,
    ):
        readers = {isolation: backend.reader(isolation) for isolation in Isolation}
        types = (ColumnType.STRING,)
        registry.register(
            StateInstance(JOB, DESCRIPTOR, types, EVERYTHING, MAX_PARALLELISM, backend.capabilities, readers)
        )
        proxy.set_location_oracle(JOB, Oracle(registry, server))
        backend.begin(0)
        backend.table(DESCRIPTOR).put(KEY, 71.06)
        client.get(JOB, STATE, KEY)  # it finds the proxy and the state
        path.open = True
        assert client.get(JOB, STATE, KEY).value() == 71.06
        path.open = False
    seen = "\n".join(path.modules)
    assert len(path.modules) <= MOST_MODULES, f"{len(path.modules)} modules:\n{seen}"
    # From one end to the other, in both threads.
    assert next(iter(path.modules)) == "runtime/client/sync_client.py", seen
    assert "backends/heap/backend.py" in path.modules, seen
