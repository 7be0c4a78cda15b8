"""A state server and a client proxy in a process of its own, for clients that mean it ill.

Rules of this module: it holds a small and a large state and serves them as a task manager does that always has an
epoch and asks for a token, with the default options and the default `query_quota`, until its standard input ends. It
knows nothing of its clients.

    python -m benchmarks.hostile_server BACKEND DIRECTORY LARGE_BYTES
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.process_memory import forget_peak
from qstate.backends.catalog import open_backend
from qstate.backends.contract import Isolation, StateBackend
from qstate.config import JobConfig
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import QueryError, UnknownState
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer

__all__ = ["JOB", "LARGE", "LARGE_KEYS", "SMALL", "SMALL_KEYS", "TOKEN", "large_key", "small_key"]

JOB, SMALL, LARGE = "hostile", "small", "large"
SMALL_KEYS, LARGE_KEYS = 20_000, 40
GROUPS = KeyGroupRange(0, 128)
#: Of all clients: what an attacker without one can do is only a part of it.
TOKEN = b"the clients' token"
STATES = {name: ValueStateDescriptor(name, bytes).queryable(name) for name in (SMALL, LARGE)}


def small_key(number: int) -> str:
    """A key with a small value."""
    return f"key {number % SMALL_KEYS}"


def large_key(number: int) -> str:
    """A key with a large value."""
    return f"large key {number % LARGE_KEYS}"


class _Oracle:
    """Finds each state at the one server."""

    def __init__(self, registry: StateRegistry, server: StateServer) -> None:
        self._registry = registry
        self._server = server

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        for state_id, found in self._registry.instances().items():
            if found.name == state:
                owner = Owner(GROUPS, *self._server.address, state_id)
                reply(LocationTable(JOB, found.describe(), len(GROUPS), (owner,)))
                return
        reply(UnknownState(state=state))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([found.describe() for found in self._registry.instances().values()])


def _fill(backend: StateBackend, large_bytes: int) -> None:
    backend.begin(0)
    backend.table(STATES[SMALL]).put_many([small_key(i) for i in range(SMALL_KEYS)], [b"x" * 20] * SMALL_KEYS)
    large, value = backend.table(STATES[LARGE]), bytes(large_bytes)
    for number in range(LARGE_KEYS):
        large.put(large_key(number), value)
    for _ in backend.commit(0):
        """Nothing is stored."""
    backend.finalize(0)


def main() -> None:
    """Serve until the end of the input."""
    name, directory, large_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    directory.mkdir(parents=True)
    sys.setswitchinterval(JobConfig().switch_interval_s)
    with ExitStack() as stack:
        backend = open_backend(name, key_groups=GROUPS, max_parallelism=len(GROUPS), directory=directory)
        stack.callback(backend.close)
        _fill(backend, large_bytes)
        registry = StateRegistry()
        for descriptor in STATES.values():
            readers = {Isolation.LIVE: backend.reader(Isolation.LIVE)}
            capabilities = frozenset(type(backend).capabilities)
            registry.register(
                StateInstance(JOB, descriptor, (ColumnType.STRING,), GROUPS, len(GROUPS), capabilities, readers)
            )
        options = EndpointOptions(token=TOKEN, peer_token=b"the proxies' token", query_quota=JobConfig().query_quota)
        server = stack.enter_context(StateServer(registry, options))
        proxy = stack.enter_context(ClientProxy(options, local=server))
        proxy.set_location_oracle(JOB, _Oracle(registry, server))
        forget_peak()
        print(proxy.address[1], server.address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
