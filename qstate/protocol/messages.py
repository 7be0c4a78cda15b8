"""The messages of the wire protocol, their type numbers and the rules that each must keep.

Rules of this module: a message is a NamedTuple, immutable and cheap. The annotation of a field is its rule: its type,
its bounds, and what an error says was expected (`description`), or the functions that read and write it (`Reader`). The
module knows which values a message may hold (docs/reference/protocol.md). It must not know how they are decoded
(codec.py), nor the order of messages and which answer belongs to which request (connection.py).

Do not bound the members of a union with a tuple of fixed length: msgspec 0.22 then reads beyond its own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, Raw, Struct
from msgspec.structs import astuple

from qstate.errors import Detail, TooLarge
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, Namespace
from qstate.protocol.fields import (
    MAX_INT64,
    Reader,
    check_attributes,
    check_integer,
    check_name,
    malformed,
    read_description,
    read_keys,
    read_namespace,
    read_options,
    read_scalars,
    write_key,
    write_keys,
)
from qstate.protocol.limits import (
    MAX_DEADLINE_MS,
    MAX_ENTRIES,
    MAX_FEATURES,
    MAX_FRAME_LIMIT,
    MAX_ID,
    MAX_KEYS_LIMIT,
    MAX_MAP_ENTRIES,
    MAX_NAME,
    MAX_TOKEN,
    MAX_VERSION,
    MAX_VERSIONS,
    MIN_MAX_FRAME,
    STATE_ID_BYTES,
    Limits,
)
from qstate.protocol.part_messages import GetPart, Part, check_get_part
from qstate.protocol.range_messages import (
    Changes,
    Page,
    Poll,
    Run,
    Scan,
    check_changes,
    check_page,
    check_poll,
    check_scan,
)
from qstate.protocol.rules import (
    MAX_CODE,
    NO_ATTRIBUTES,
    NO_EPOCH,
    TRACEPARENT,
    Attributes,
    Deadline,
    Name,
    RequestId,
    Target,
    array,
    integer,
    text,
)

__all__ = [
    "AFTER",
    "FORMS",
    "MORE",
    "NO_ATTRIBUTES",
    "NO_EPOCH",
    "PLAIN",
    "TRACEPARENT",
    "Cancel",
    "Changes",
    "Describe",
    "Description",
    "Failure",
    "Form",
    "Get",
    "GetPart",
    "Hello",
    "Locate",
    "Location",
    "Message",
    "Owned",
    "Page",
    "Part",
    "Ping",
    "Poll",
    "Pong",
    "Run",
    "Scan",
    "Target",
    "Values",
    "Welcome",
]

#: `(first key group, one past the last, host, port, state id)`
Owned: TypeAlias = tuple[int, int, str, int, bytes]
#: The types of results that are not failures.
PLAIN = frozenset({bytes, type(None)})
#: The known attribute of a Describe: the name after which to go on, empty at the beginning.
AFTER = "?after"
#: The known attribute of a Description: whether there are entries after its last one.
MORE = "?more"


def _read_state(raw: Raw, limits: Limits) -> Mapping[str, Any]:
    return _checked_state(read_description(raw, "state"), "state")


def _read_entries(raws: tuple[Raw, ...], limits: Limits) -> tuple[Mapping[str, Any], ...]:
    return tuple(_entry(raw) for raw in raws)


def _read_after(raw: Raw, limits: Limits) -> Mapping[str, Detail]:
    found = check_attributes(raw).get(AFTER)
    return {AFTER: found} if type(found) is str and len(found) <= MAX_NAME else NO_ATTRIBUTES


def _read_more(raw: Raw, limits: Limits) -> Mapping[str, Detail]:
    return {MORE: True} if check_attributes(raw).get(MORE) is True else NO_ATTRIBUTES


class _Owned(Struct, array_like=True):
    """An owner on the wire. The library skips further elements."""

    start: int
    stop: int
    host: str
    port: int
    state_id: bytes


def _read_owners(rows: tuple[_Owned, ...], limits: Limits) -> tuple[Owned, ...]:
    return tuple(map(astuple, rows))


def _read_details(raw: Raw, limits: Limits) -> Mapping[str, Detail]:
    return read_scalars(raw, "details")


def _entry(raw: Raw) -> Mapping[str, Any]:
    """A state of a job, or a job: a map without `kind`."""
    entry = read_description(raw, "entries")
    if "kind" in entry:
        return _checked_state(entry, "entries")
    check_name(entry.get("job"), "entries.job")
    return entry


def _checked_state(state: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A description map. Unknown names are allowed: a newer server may send more about a state."""
    for name in ("name", "kind", "serializer", "fingerprint"):
        check_name(state.get(name), f"{field}.{name}")
    version = state.get("serializer_version")
    if type(version) is not int or version < 1:
        raise malformed(f"{field}.serializer_version", "integer from 1")
    if type(state.get("value_type")) is not str:
        raise malformed(f"{field}.value_type", "string")
    for name in ("key_types", "namespace_types", "capabilities"):
        if name == "namespace_types" and name in state and state[name] is None:
            continue
        if type(state.get(name)) is not tuple:
            raise malformed(f"{field}.{name}", f"array of 0..{MAX_MAP_ENTRIES} strings")
        for item in state[name]:
            check_name(item, f"{field}.{name}")
    return state


class Hello(NamedTuple):
    """The client's first message: the versions that it supports, its token and its name.

    `features` are the optional abilities of the client; no answer to it is larger than its `max_frame`.
    """

    versions: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_VERSION)], ...], array(1, MAX_VERSIONS, "integers")]
    token: Annotated[
        Annotated[bytes, Meta(max_length=MAX_TOKEN)] | None, Meta(description=f"nil or {MAX_TOKEN} bytes at most")
    ]
    client: Annotated[str, text(0)]
    features: Annotated[tuple[Name, ...], array(0, MAX_FEATURES, "strings")] = ()
    max_frame: Annotated[int, integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)] = MAX_FRAME_LIMIT

    def __repr__(self) -> str:
        shown = None if self.token is None else "..."  # errors and logs show messages
        return f"Hello(versions={self.versions!r}, token={shown!r}, client={self.client!r}, ...)"


class Welcome(NamedTuple):
    """The server's answer to Hello: the version of this connection and the server's limits.

    The server reads no further while `max_in_flight` requests of the connection are unanswered. It may close a
    connection that has been without a request for `idle_timeout_ms`; 0 is no such time.
    """

    version: Annotated[int, integer(1, MAX_VERSION)]
    server: Annotated[str, text(0)]
    features: Annotated[tuple[Name, ...], array(0, MAX_FEATURES, "strings")]
    max_frame: Annotated[int, integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)]
    max_keys: Annotated[int, integer(1, MAX_KEYS_LIMIT)]
    max_in_flight: Annotated[int, integer(1, MAX_ID)] = MAX_ID
    idle_timeout_ms: Annotated[int, integer(0, MAX_DEADLINE_MS)] = 0


class Get(NamedTuple):
    """Read the values of keys. `deadline_ms` counts from the moment of receipt."""

    id: RequestId
    deadline_ms: Deadline
    target: Target
    namespace: Annotated[Namespace, Reader(read_namespace, write=write_key)]
    options: Annotated[Mapping[str, Detail], Reader(read_options)]
    keys: Annotated[tuple[Key, ...], Reader(read_keys, write=write_keys)]
    attributes: Attributes = NO_ATTRIBUTES


class Values(NamedTuple):
    """The answer to Get, for each key in order: bytes, None (not found) or a failure code (with epoch -1).

    `fingerprint` is that of the state's description by which the bytes are to be read; empty if there are none.
    """

    id: RequestId
    epochs: Annotated[
        tuple[Annotated[int, Meta(ge=NO_EPOCH, le=MAX_INT64)], ...],
        Meta(max_length=MAX_KEYS_LIMIT, description="array of integers from -1, one for each result"),
    ]
    results: Annotated[
        tuple[bytes | int | None, ...],
        Meta(min_length=1, max_length=MAX_KEYS_LIMIT, description="array of binary, nil or failure code"),
    ]
    fingerprint: Annotated[str, text(0)]

    def with_failures_marked(self) -> Values:
        """The same answer, in which each failure has epoch -1."""
        if PLAIN.issuperset(map(type, self.results)):
            return self
        epochs = (
            NO_EPOCH if isinstance(result, int) else epoch
            for result, epoch in zip(self.results, self.epochs, strict=True)
        )
        return self._replace(epochs=tuple(epochs))


class Locate(NamedTuple):
    """Ask a proxy for the owners of a state's key groups."""

    id: RequestId
    deadline_ms: Deadline
    job: Name
    state: Name


class Location(NamedTuple):
    """The answer to Locate: the state's description and the owners, ascending. A gap currently has no owner."""

    id: RequestId
    state: Annotated[Mapping[str, Any], Reader(_read_state)]
    max_parallelism: Annotated[int, integer(1, MAX_PARALLELISM_LIMIT)]
    owners: Annotated[
        tuple[Owned, ...],
        Reader(
            _read_owners,
            Annotated[
                tuple[_Owned, ...],
                Meta(max_length=MAX_PARALLELISM_LIMIT, description="array of [start, stop, host, port, state id]"),
            ],
        ),
    ]


class Describe(NamedTuple):
    """List the states of a job, or the jobs when `job` is None.

    With the attribute `AFTER`, only those whose names come after it, as many as fit an answer.
    """

    id: RequestId
    deadline_ms: Deadline
    job: Annotated[Name | None, Meta(description=f"nil or string of 1..{MAX_NAME} characters")]
    attributes: Annotated[Mapping[str, Detail], Reader(_read_after)] = NO_ATTRIBUTES


class Description(NamedTuple):
    """The answer to Describe. With the attribute `MORE` there are entries after the last one."""

    id: RequestId
    entries: Annotated[
        tuple[Mapping[str, Any], ...],
        Reader(_read_entries, Annotated[tuple[Raw, ...], array(0, MAX_ENTRIES, "maps")]),
    ]
    attributes: Annotated[Mapping[str, Detail], Reader(_read_more)] = NO_ATTRIBUTES


class Ping(NamedTuple):
    """Check that the peer is alive, and measure the round trip."""

    id: RequestId


class Pong(NamedTuple):
    """The answer to Ping."""

    id: RequestId


class Cancel(NamedTuple):
    """The client waits no longer for the answer to the request of this id. It has no answer of its own."""

    id: RequestId


class Failure(NamedTuple):
    """A request failed. With id 0 the connection failed: this is its close notice."""

    id: Annotated[int, integer(0, MAX_ID)]
    code: Annotated[int, integer(1, MAX_CODE)]
    details: Annotated[Mapping[str, Detail], Reader(_read_details)]


Message: TypeAlias = (
    Hello
    | Welcome
    | Get
    | Values
    | Locate
    | Location
    | Describe
    | Description
    | Ping
    | Pong
    | Failure
    | Scan
    | Page
    | Poll
    | Changes
    | Cancel
    | GetPart
    | Part
)


def _check_values(message: Values, limits: Limits) -> None:
    _, epochs, results, fingerprint = message
    if len(results) > limits.max_keys:
        raise TooLarge(field="results", limit=limits.max_keys)
    if len(epochs) != len(results):
        raise malformed("epochs", f"array of {len(results)}, one for each result")
    plain = PLAIN.issuperset(map(type, results))
    if not fingerprint and (plain or not all(type(result) is int for result in results)):
        raise malformed("fingerprint", "that of the description of the values")
    if not plain:
        for result, epoch in zip(results, epochs, strict=True):
            if type(result) is int and (not 0 < result <= MAX_CODE or epoch != NO_EPOCH):
                raise malformed("results", f"failure code 1..{MAX_CODE} with epoch {NO_EPOCH}")


def _check_location(message: Location, limits: Limits) -> None:
    free = 0
    for start, stop, host, port, state_id in message.owners:
        # Ascending without overlap: a key group has at most one owner.
        check_integer(start, "owners.start", free, message.max_parallelism - 1)
        check_integer(stop, "owners.stop", start + 1, message.max_parallelism)
        check_name(host, "owners.host")
        check_integer(port, "owners.port", 1, 65_535)
        if len(state_id) != STATE_ID_BYTES:
            raise malformed("owners.state_id", f"binary of {STATE_ID_BYTES} bytes")
        free = stop


class Form(NamedTuple):
    """A message on the wire: its type number, its class, and the rule that concerns several of its fields, if any."""

    number: int
    message: type[Any]
    check: Callable[[Any, Limits], None] | None = None


#: The type numbers on the wire. They never change.
FORMS = (
    Form(0, Hello),
    Form(1, Welcome),
    Form(2, Get),
    Form(3, Values, _check_values),
    Form(4, Locate),
    Form(5, Location, _check_location),
    Form(6, Describe),
    Form(7, Description),
    Form(8, Ping),
    Form(9, Pong),
    Form(10, Failure),
    Form(15, Poll, check_poll),
    Form(16, Changes, check_changes),
    Form(13, Scan, check_scan),
    Form(14, Page, check_page),
    Form(17, Cancel),
    Form(18, GetPart, check_get_part),
    Form(19, Part),
)
