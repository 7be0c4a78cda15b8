"""Location oracles for tests: one answers from a table at once, one waits for the test, one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qstate.errors import QueryError, UnknownState
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.readers import MAX_PARALLELISM

Located = Callable[[LocationTable | QueryError], None]
Described = Callable[[Sequence[Mapping[str, Any]] | QueryError], None]


def owner(instance: StateInstance, address: tuple[str, int], state_id: bytes) -> Owner:
    return Owner(instance.key_groups, *address, state_id)


def table(instance: StateInstance, *owners: Owner) -> LocationTable:
    return LocationTable(instance.job, instance.describe(), MAX_PARALLELISM, owners)


class TableOracle:
    """Answers from `tables`, which the test may change. An entry may be an error."""

    def __init__(self, **tables: LocationTable | QueryError) -> None:
        self.tables = tables
        self.asked = 0

    def locate(self, state: str, reply: Located) -> None:
        self.asked += 1
        reply(self.tables.get(state, UnknownState(state=state)))

    def describe(self, reply: Described) -> None:
        reply([found.state for found in self.tables.values() if isinstance(found, LocationTable)])


def serve(proxy: ClientProxy, registry: StateRegistry, server: StateServer, state_id: bytes) -> None:
    """Let the proxy find a registered state at the server."""
    found = registry.lookup(state_id)
    assert found is not None
    at = owner(found, server.address, state_id)
    proxy.set_location_oracle(found.job, TableOracle(**{found.name: table(found, at)}))


class PendingOracle:
    """Keeps every question until the test answers it."""

    def __init__(self) -> None:
        self.locating: list[Located] = []
        self.describing: list[Described] = []
        self.asked = threading.Semaphore(0)

    def locate(self, state: str, reply: Located) -> None:
        self.locating.append(reply)
        self.asked.release()

    def describe(self, reply: Described) -> None:
        self.describing.append(reply)
        self.asked.release()


class RefusingOracle:
    """Raises its answer instead of giving it to `reply`."""

    def locate(self, state: str, reply: Located) -> None:
        raise UnknownState(state=state)

    def describe(self, reply: Described) -> None:
        raise UnknownState(state="all of them")


class BrokenOracle:
    """Raises an error that no oracle may raise."""

    def locate(self, state: str, reply: Located) -> None:
        raise RuntimeError("a bug in an oracle")

    def describe(self, reply: Described) -> None:
        raise RuntimeError("a bug in an oracle")
