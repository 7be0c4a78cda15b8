"""The messages of the wire protocol, their type numbers and the rules that each must keep.

Rules of this module: a message is a NamedTuple, immutable and cheap. The module knows which values a message may hold
(docs/reference/protocol.md). It must not know the encoding (codec.py), nor the order of messages and which answer
belongs to which request (connection.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from qstate.errors import Detail
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, Namespace
from qstate.protocol import fields as field_rules
from qstate.protocol.limits import (
    MAX_DEADLINE_MS,
    MAX_ENTRIES,
    MAX_FEATURES,
    MAX_FRAME_LIMIT,
    MAX_KEYS_LIMIT,
    MAX_MAP_ENTRIES,
    MAX_TOKEN,
    MAX_VERSION,
    MAX_VERSIONS,
    MIN_MAX_FRAME,
    STATE_ID_BYTES,
    Limits,
)

__all__ = [
    "FORMS",
    "FORM_OF_CLASS",
    "FORM_OF_NUMBER",
    "NO_EPOCH",
    "Describe",
    "Description",
    "Failure",
    "Form",
    "Get",
    "Hello",
    "Locate",
    "Location",
    "Message",
    "Owned",
    "Ping",
    "Pong",
    "Target",
    "Values",
    "Welcome",
]

#: `(job, state)` at a proxy, the 16 bytes of a state id at a state server.
Target: TypeAlias = tuple[str, str] | bytes
#: `(first key group, one past the last, host, port, state id)`
Owned: TypeAlias = tuple[int, int, str, int, bytes]
#: The epoch of a key whose result is a failure.
NO_EPOCH = -1


class Hello(NamedTuple):
    """The client's first message: the versions that it supports, its token and its name."""

    versions: tuple[int, ...]
    token: bytes | None
    client: str

    def __repr__(self) -> str:
        shown = None if self.token is None else "..."  # errors and logs show messages
        return f"Hello(versions={self.versions!r}, token={shown!r}, client={self.client!r})"


class Welcome(NamedTuple):
    """The server's answer to Hello: the version of this connection and the server's limits."""

    version: int
    server: str
    features: tuple[str, ...]
    max_frame: int
    max_keys: int


class Get(NamedTuple):
    """Read the values of keys. `deadline_ms` counts from the moment of receipt."""

    id: int
    deadline_ms: int
    target: Target
    namespace: Namespace
    options: Mapping[str, Detail]
    keys: tuple[Key, ...]


class Values(NamedTuple):
    """The answer to Get, for each key in order: bytes, None (not found) or a failure code (with epoch -1)."""

    id: int
    epochs: tuple[int, ...]
    results: tuple[bytes | int | None, ...]

    def with_failures_marked(self) -> Values:
        """A copy in which each failure has epoch -1."""
        epochs = (
            NO_EPOCH if isinstance(result, int) else epoch
            for result, epoch in zip(self.results, self.epochs, strict=True)
        )
        return self._replace(epochs=tuple(epochs))


class Locate(NamedTuple):
    """Ask a proxy for the owners of a state's key groups."""

    id: int
    deadline_ms: int
    job: str
    state: str


class Location(NamedTuple):
    """The answer to Locate: the state's description and the owners, ascending. A gap currently has no owner."""

    id: int
    state: Mapping[str, Any]
    max_parallelism: int
    owners: tuple[Owned, ...]


class Describe(NamedTuple):
    """List the states of a job, or the jobs when `job` is None."""

    id: int
    deadline_ms: int
    job: str | None


class Description(NamedTuple):
    """The answer to Describe."""

    id: int
    entries: tuple[Mapping[str, Any], ...]


class Ping(NamedTuple):
    """Check that the peer is alive, and measure the round trip."""

    id: int


class Pong(NamedTuple):
    """The answer to Ping."""

    id: int


class Failure(NamedTuple):
    """A request failed. With id 0 the connection failed: this is its close notice."""

    id: int
    code: int
    details: Mapping[str, Detail]


Message: TypeAlias = Hello | Welcome | Get | Values | Locate | Location | Describe | Description | Ping | Pong | Failure


def _check_hello(message: Hello, limits: Limits) -> None:
    field_rules.check_array(message.versions, "versions", 1, MAX_VERSIONS)
    for version in message.versions:
        field_rules.check_integer(version, "versions", 1, MAX_VERSION)
    if message.token is not None and (type(message.token) is not bytes or len(message.token) > MAX_TOKEN):
        raise field_rules.malformed("token", f"nil or binary of at most {MAX_TOKEN} bytes")
    field_rules.check_name(message.client, "client", low=0)


def _check_welcome(message: Welcome, limits: Limits) -> None:
    field_rules.check_integer(message.version, "version", 1, MAX_VERSION)
    field_rules.check_name(message.server, "server", low=0)
    field_rules.check_names(message.features, "features", MAX_FEATURES)
    field_rules.check_integer(message.max_frame, "max_frame", MIN_MAX_FRAME, MAX_FRAME_LIMIT)
    field_rules.check_integer(message.max_keys, "max_keys", 1, MAX_KEYS_LIMIT)


def _check_get(message: Get, limits: Limits) -> None:
    # It runs for every request of every client, so it is unrolled: the common request makes few calls.
    _, deadline_ms, target, namespace, options, keys = message
    if type(deadline_ms) is not int or not 0 <= deadline_ms <= MAX_DEADLINE_MS:
        field_rules.check_integer(deadline_ms, "deadline_ms", 0, MAX_DEADLINE_MS)
    if type(target) is not bytes or len(target) != STATE_ID_BYTES:
        field_rules.check_target(target)
    if namespace is not None:
        field_rules.check_namespace(namespace)
    field_rules.check_options(options)
    field_rules.check_keys(keys, limits.max_keys)


def _check_values(message: Values, limits: Limits) -> None:
    field_rules.check_results(message.results, message.epochs, limits.max_keys)


def _check_locate(message: Locate, limits: Limits) -> None:
    field_rules.check_integer(message.deadline_ms, "deadline_ms", 0, MAX_DEADLINE_MS)
    field_rules.check_name(message.job, "job")
    field_rules.check_name(message.state, "state")


def _check_location(message: Location, limits: Limits) -> None:
    _check_state(message.state, "state")
    field_rules.check_integer(message.max_parallelism, "max_parallelism", 1, MAX_PARALLELISM_LIMIT)
    field_rules.check_array(message.owners, "owners", 0, message.max_parallelism)
    free = 0
    for owner in message.owners:
        if type(owner) is not tuple or len(owner) != 5:
            raise field_rules.malformed("owners", "[start, stop, host, port, state id]")
        start, stop, host, port, state_id = owner
        # Ascending without overlap: a key group has at most one owner.
        field_rules.check_integer(start, "owners.start", free, message.max_parallelism - 1)
        field_rules.check_integer(stop, "owners.stop", start + 1, message.max_parallelism)
        field_rules.check_name(host, "owners.host")
        field_rules.check_integer(port, "owners.port", 1, 65_535)
        if type(state_id) is not bytes or len(state_id) != STATE_ID_BYTES:
            raise field_rules.malformed("owners.state_id", f"binary of {STATE_ID_BYTES} bytes")
        free = stop


def _check_describe(message: Describe, limits: Limits) -> None:
    field_rules.check_integer(message.deadline_ms, "deadline_ms", 0, MAX_DEADLINE_MS)
    if message.job is not None:
        field_rules.check_name(message.job, "job")


def _check_description(message: Description, limits: Limits) -> None:
    field_rules.check_array(message.entries, "entries", 0, MAX_ENTRIES)
    for entry in message.entries:
        if type(entry) is dict and "kind" not in entry:
            field_rules.check_description(entry, "entries")
            field_rules.check_name(entry.get("job"), "entries.job")
        else:
            _check_state(entry, "entries")


def _check_state(state: Any, field: str) -> None:
    """A description map. Unknown names are allowed: a newer server may send more about a state."""
    field_rules.check_description(state, field)
    for name in ("name", "kind", "serializer"):
        field_rules.check_name(state.get(name), f"{field}.{name}")
    if type(state.get("value_type")) is not str:
        raise field_rules.malformed(f"{field}.value_type", "string")
    for name in ("key_types", "capabilities"):
        field_rules.check_names(state.get(name), f"{field}.{name}", MAX_MAP_ENTRIES)


def _check_nothing(message: Ping | Pong, limits: Limits) -> None:
    """Ping and Pong have no field but the id."""


def _check_failure(message: Failure, limits: Limits) -> None:
    field_rules.check_code(message.code)
    field_rules.check_scalars(message.details, "details")


class Form(NamedTuple):
    """The wire form of a message: the prefix before its fields, the depth of their nesting, and their check."""

    message: type[Any]
    prefix: tuple[int, ...]
    check: Callable[[Any, Limits], None]
    has_id: bool
    size: int
    #: How deep arrays and maps nest in a field: 1 for an array of numbers, 0 when no field is an array or map.
    depth: int


def _form(number: int, message: type[Any], check: Callable[[Any, Limits], None], depth: int) -> Form:
    has_id = message._fields[0] == "id"
    prefix = (number,) if has_id else (number, 0)
    return Form(message, prefix, check, has_id, len(prefix) + len(message._fields), depth)


#: The type numbers on the wire. They never change.
FORMS = (
    _form(0, Hello, _check_hello, 1),
    _form(1, Welcome, _check_welcome, 1),
    _form(2, Get, _check_get, 2),
    _form(3, Values, _check_values, 1),
    _form(4, Locate, _check_locate, 0),
    _form(5, Location, _check_location, 2),
    _form(6, Describe, _check_describe, 0),
    _form(7, Description, _check_description, 3),
    _form(8, Ping, _check_nothing, 0),
    _form(9, Pong, _check_nothing, 0),
    _form(10, Failure, _check_failure, 1),
)
FORM_OF_CLASS: dict[type, Form] = {form.message: form for form in FORMS}
FORM_OF_NUMBER: dict[int, Form] = {form.prefix[0]: form for form in FORMS}
