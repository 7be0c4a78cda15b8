"""A server that holds the fixture: qstate's own proxy and two state servers, on this machine.

Rules of this module: it starts and stops qstate's runtime as a task manager does, the proxy beside the state server of
its own process, and puts nothing in between. So what the suite proves of it is what task managers serve. Server authors
compare theirs with it, client authors develop against it, and the suite proves itself on it.
"""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qstate.backends import open_backend
from qstate.backends.contract import Capability, Isolation, StateBackend
from qstate.errors import QueryError, UnknownState
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.control.statistics import RequestStatistics
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from qstate_conformance.server import fixture
from qstate_conformance.server.history_state import HistoryState
from qstate_conformance.server.loading import descriptor_of, load
from qstate_conformance.server.misbehaving_owners import dying_owner, silent_owner
from qstate_conformance.server.special_states import SpecialState, special_states

__all__ = ["ReferenceServer", "reference_server", "serve"]

_HERE = "127.0.0.1"
_PARTS = tuple(KeyGroupRange(start, stop) for start, stop in fixture.OWNED)


@dataclass(frozen=True, slots=True)
class ReferenceServer:
    """What runs: the proxy, which laws and clients talk to, and the state servers behind it, the first beside it."""

    proxy: ClientProxy
    servers: tuple[StateServer, ...]

    @property
    def address(self) -> tuple[str, int]:
        """Where the proxy listens."""
        return self.proxy.address


@contextmanager
def reference_server(
    backend: str = "heap",
    *,
    bind: str = _HERE,
    port: int = 0,
    token: bytes | None = None,
    statistics: RequestStatistics | None = None,
) -> Iterator[ReferenceServer]:
    """Load the fixture into a backend of each owner and serve it; `statistics` are the proxy's.

    Raises what opening the backend raises, and `ConfigError` when the port is taken.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qstate-conformance-")))
        # Before the servers, so that they are closed after the last read.
        parts = [stack.enter_context(_loaded(backend, part, scratch)) for part in _PARTS]
        locations = _Locations()
        registries = (StateRegistry(), StateRegistry())
        servers = tuple(StateServer(registry, _server_options(bind, token)) for registry in registries)
        for server in servers:
            stack.callback(server.shutdown, 1.0)
            server.start()
        for number, (part, opened) in enumerate(zip(_PARTS, parts, strict=True)):
            which = number % len(servers)
            locations.add(opened, part, servers[which], registries[which])
        locations.misplace(fixture.MOVED, servers[0].address)
        locations.misplace(fixture.UNREACHABLE, stack.enter_context(_nobody(bind)))
        locations.misplace(fixture.SILENT, stack.enter_context(silent_owner(bind)).address)
        dying = stack.enter_context(dying_owner(bind, locations.fingerprint))
        locations.misplace(fixture.DYING, dying.address)
        for history in fixture.HISTORIES:
            directory = _made(scratch / history.state.name)
            state = HistoryState(history, servers[1].address, registries[1], directory)
            locations.special[state.name] = state
        for found in special_states(servers[0].address, registries[0]):
            locations.special[found.name] = found
        proxy = ClientProxy(_proxy_options(bind, port, token), statistics, local=servers[0])
        stack.callback(proxy.shutdown, 1.0)
        proxy.start()
        proxy.set_location_oracle(fixture.JOB, locations)
        proxy.set_location_oracle(fixture.SILENT_JOB, _SilentOracle())
        yield ReferenceServer(proxy, servers)


def serve(backend: str = "heap", *, bind: str = _HERE, port: int = 0, token: bytes | None = None) -> None:
    """Serve until SIGTERM or SIGINT; says where on standard output. Call it on the main thread.

    Raises what `reference_server` raises.
    """
    # Blocked before any thread starts, so that only `sigwait` receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        with reference_server(backend, bind=bind, port=port, token=token) as running:
            host, bound = running.address
            print(f"listening on {host}:{bound}", flush=True)
            signal.sigwait(_STOP_SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _proxy_options(bind: str, port: int, token: bytes | None) -> EndpointOptions:
    limits = fixture.LIMITS
    return EndpointOptions(
        bind=bind,
        ports=str(port),
        token=token,
        max_connections=limits.max_connections,
        max_frame=limits.max_frame,
        max_keys=limits.max_keys,
        max_queued=limits.max_requests,
        max_requests_per_connection=limits.max_requests_per_connection,
        handshake_timeout_s=limits.handshake_timeout_ms / 1000,
        unread_timeout_s=limits.unread_timeout_ms / 1000,
    )


def _server_options(bind: str, token: bytes | None) -> EndpointOptions:
    limits = fixture.LIMITS
    return EndpointOptions(
        bind=bind,
        token=token,
        max_connections=limits.max_connections,
        max_frame=limits.max_frame,
        max_keys=limits.max_keys,
        handshake_timeout_s=limits.handshake_timeout_ms / 1000,
    )


@contextmanager
def _nobody(bind: str) -> Iterator[tuple[str, int]]:
    """An address where connections are refused all the while: bound, but not listening."""
    family, kind, number, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, number) as held:
        held.bind(address)
        host, port = held.getsockname()[:2]
        yield host, port


@contextmanager
def _loaded(backend: str, key_groups: KeyGroupRange, scratch: Path) -> Iterator[StateBackend]:
    directory = scratch / str(key_groups.start)
    directory.mkdir()
    opened = open_backend(backend, key_groups=key_groups, max_parallelism=fixture.MAX_PARALLELISM, directory=directory)
    with opened:
        load(opened, key_groups)
        yield opened


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


class _Locations:
    """The job's location oracle: what each owner registered, and the two states that are not where it says."""

    def __init__(self) -> None:
        self._owners: dict[str, list[Owner]] = {}
        self._descriptions: dict[str, Mapping[str, Any]] = {}
        self.special: dict[str, SpecialState | HistoryState] = {}

    def add(
        self, backend: StateBackend, key_groups: KeyGroupRange, server: StateServer, registry: StateRegistry
    ) -> None:
        """Serve an owner's part of every state."""
        for found in fixture.STATES:
            instance = _instance(backend, found, key_groups)
            owner = Owner(key_groups, *server.address, registry.register(instance))
            self._descriptions[found.name] = instance.describe()
            self._owners.setdefault(found.name, []).append(owner)

    @property
    def fingerprint(self) -> str:
        """That of the description of misplaced states."""
        return str(self._descriptions[fixture.STATES[0].name]["fingerprint"])

    def misplace(self, name: str, address: tuple[str, int]) -> None:
        """Report a state at this address, by an id that is not registered anywhere."""
        everything = KeyGroupRange(0, fixture.MAX_PARALLELISM)
        self._descriptions[name] = {**self._descriptions[fixture.STATES[0].name], "name": name}
        self._owners[name] = [Owner(everything, *address, bytes(16))]

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        if state in self.special:
            reply(self.special[state].located())
            return
        if state not in self._owners:
            reply(UnknownState(state=state))
            return
        owners = tuple(self._owners[state])
        reply(LocationTable(fixture.JOB, self._descriptions[state], fixture.MAX_PARALLELISM, owners))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([*self._descriptions.values(), *(found.description for found in self.special.values())])


class _SilentOracle:
    """Keeps every question to itself."""

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        return

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        return


def _instance(backend: StateBackend, found: fixture.State, key_groups: KeyGroupRange) -> StateInstance:
    capabilities = frozenset(type(backend).capabilities)
    isolations = [Isolation.LIVE] + [Isolation.COMMITTED] * (Capability.COMMITTED_READS in capabilities)
    return StateInstance(
        job=fixture.JOB,
        descriptor=descriptor_of(found),
        key_types=tuple(ColumnType(column) for column in found.key_types),
        key_groups=key_groups,
        max_parallelism=fixture.MAX_PARALLELISM,
        capabilities=capabilities,
        readers={isolation: backend.reader(isolation) for isolation in isolations},
    )
