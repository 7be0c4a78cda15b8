"""The messages of the wire protocol, their type numbers and the rules that each must keep.

Rules of this module: a message is a NamedTuple, immutable and cheap. The annotation of a field is its rule: its type,
its bounds, and what an error says was expected (`description`), or the function that reads it (`Reader`). The module
knows which values a message may hold (docs/reference/protocol.md). It must not know how they are decoded (codec.py),
nor the order of messages and which answer belongs to which request (connection.py).

Do not bound the members of a union with a tuple of fixed length: msgspec 0.22 then reads beyond its own memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, Raw, Struct
from msgspec.structs import astuple

from qstate.errors import Detail, TooLarge
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, Namespace
from qstate.protocol.fields import (
    MAX_INT64,
    NIL,
    Prefix,
    Reader,
    check_attributes,
    check_integer,
    check_name,
    malformed,
    read_any_keys,
    read_description,
    read_keys,
    read_namespace,
    read_namespaces,
    read_options,
    read_page_keys,
    read_page_namespaces,
    read_place,
    read_prefix,
    read_scalars,
    read_scan_options,
    read_target,
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
    MAX_POSITION,
    MAX_RUNS,
    MAX_TOKEN,
    MAX_VERSION,
    MAX_VERSIONS,
    MAX_VIEW,
    MIN_MAX_FRAME,
    STATE_ID_BYTES,
    Limits,
)

__all__ = [
    "FORMS",
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
    "Hello",
    "Locate",
    "Location",
    "Message",
    "Owned",
    "Page",
    "Ping",
    "Poll",
    "Pong",
    "Run",
    "Scan",
    "Target",
    "Values",
    "Welcome",
    "read_attributes",
]

#: `(job, state)` at a proxy, the 16 bytes of a state id at a state server.
Target: TypeAlias = tuple[str, str] | bytes
#: `(first key group, one past the last, host, port, state id)`
Owned: TypeAlias = tuple[int, int, str, int, bytes]
#: The epoch of a key whose result is a failure.
NO_EPOCH = -1
#: The types of results that are not failures.
PLAIN = frozenset({bytes, type(None)})
#: The keys of a run are bounded by the frame alone.
_ANY_NUMBER = Limits(max_keys=MAX_KEYS_LIMIT)
#: The known attribute of a Get. It names the span that the Get is sent for, in the form of W3C Trace Context. A
#: receiver that traces makes its own spans children of that span.
TRACEPARENT = "?traceparent"
#: The characters of its version 00. Another text is as good as none.
TRACEPARENT_LENGTH = 55
NO_ATTRIBUTES: Mapping[str, Detail] = {}
#: The largest failure code. A newer peer may use codes that this version does not know.
_MAX_CODE = 65_535


def _integer(low: int, high: int) -> Meta:
    return Meta(ge=low, le=high, description=f"integer {low}..{high}")


def _text(low: int) -> Meta:
    return Meta(min_length=low, max_length=MAX_NAME, description=f"string of {low}..{MAX_NAME} characters")


def _array(low: int, high: int, of: str) -> Meta:
    return Meta(min_length=low, max_length=high, description=f"array of {low}..{high} {of}")


def _read_state(raw: Raw, limits: Limits) -> Mapping[str, Any]:
    return _checked_state(read_description(raw, "state"), "state")


def _read_entries(raws: tuple[Raw, ...], limits: Limits) -> tuple[Mapping[str, Any], ...]:
    return tuple(_entry(raw) for raw in raws)


def read_attributes(raw: Raw) -> Mapping[str, Detail]:
    """The known attributes of a Get. Raises as `check_attributes` for those that no receiver may ignore."""
    found = check_attributes(raw).get(TRACEPARENT)
    return {TRACEPARENT: found} if type(found) is str and len(found) == TRACEPARENT_LENGTH else NO_ATTRIBUTES


class _Owned(Struct, array_like=True):
    """An owner on the wire. The library skips further elements."""

    start: int
    stop: int
    host: str
    port: int
    state_id: bytes


def _read_owners(rows: tuple[_Owned, ...], limits: Limits) -> tuple[Owned, ...]:
    return tuple(map(astuple, rows))


class _Run(Struct, array_like=True, forbid_unknown_fields=True):
    """Changes on the wire."""

    epoch: Annotated[int, Meta(ge=0, le=MAX_INT64)]
    operation: Annotated[int, Meta(ge=1, le=5)]
    namespace: Raw
    keys: Raw
    map_keys: Raw
    values: tuple[bytes, ...] | None


def _read_runs(rows: tuple[_Run, ...], limits: Limits) -> tuple[Run, ...]:
    return tuple(
        Run(
            row.epoch,
            row.operation,
            read_namespace(row.namespace, limits),
            read_keys(row.keys, _ANY_NUMBER),
            None if memoryview(row.map_keys)[0] == NIL else read_keys(row.map_keys, _ANY_NUMBER),
            row.values,
        )
        for row in rows
    )


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


RequestId: TypeAlias = Annotated[int, _integer(1, MAX_ID)]
Deadline: TypeAlias = Annotated[int, _integer(0, MAX_DEADLINE_MS)]
Name: TypeAlias = Annotated[str, _text(1)]


class Hello(NamedTuple):
    """The client's first message: the versions that it supports, its token and its name.

    `features` are the optional abilities of the client; no answer to it is larger than its `max_frame`.
    """

    versions: Annotated[tuple[Annotated[int, Meta(ge=1, le=MAX_VERSION)], ...], _array(1, MAX_VERSIONS, "integers")]
    token: Annotated[
        Annotated[bytes, Meta(max_length=MAX_TOKEN)] | None, Meta(description=f"nil or {MAX_TOKEN} bytes at most")
    ]
    client: Annotated[str, _text(0)]
    features: Annotated[tuple[Name, ...], _array(0, MAX_FEATURES, "strings")] = ()
    max_frame: Annotated[int, _integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)] = MAX_FRAME_LIMIT

    def __repr__(self) -> str:
        shown = None if self.token is None else "..."  # errors and logs show messages
        return f"Hello(versions={self.versions!r}, token={shown!r}, client={self.client!r}, ...)"


class Welcome(NamedTuple):
    """The server's answer to Hello: the version of this connection and the server's limits.

    The server reads no further while `max_in_flight` requests of the connection are unanswered. It may close a
    connection that has been without a request for `idle_timeout_ms`; 0 is no such time.
    """

    version: Annotated[int, _integer(1, MAX_VERSION)]
    server: Annotated[str, _text(0)]
    features: Annotated[tuple[Name, ...], _array(0, MAX_FEATURES, "strings")]
    max_frame: Annotated[int, _integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)]
    max_keys: Annotated[int, _integer(1, MAX_KEYS_LIMIT)]
    max_in_flight: Annotated[int, _integer(1, MAX_ID)] = MAX_ID
    idle_timeout_ms: Annotated[int, _integer(0, MAX_DEADLINE_MS)] = 0


class Get(NamedTuple):
    """Read the values of keys. `deadline_ms` counts from the moment of receipt."""

    id: RequestId
    deadline_ms: Deadline
    target: Annotated[Target, Reader(read_target)]
    namespace: Annotated[Namespace, Reader(read_namespace)]
    options: Annotated[Mapping[str, Detail], Reader(read_options)]
    keys: Annotated[tuple[Key, ...], Reader(read_keys)]
    #: Those that this version knows; the payload ends without them if there are none.
    attributes: Mapping[str, Detail] = NO_ATTRIBUTES


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
    fingerprint: Annotated[str, _text(0)]

    def with_failures_marked(self) -> Values:
        """The same answer, in which each failure has epoch -1."""
        if PLAIN.issuperset(map(type, self.results)):
            return self
        epochs = (
            NO_EPOCH if isinstance(result, int) else epoch
            for result, epoch in zip(self.results, self.epochs, strict=True)
        )
        return self._replace(epochs=tuple(epochs))


Groups: TypeAlias = Annotated[int, _integer(0, MAX_PARALLELISM_LIMIT)]
View: TypeAlias = Annotated[bytes, Meta(max_length=MAX_VIEW, description=f"binary of 0..{MAX_VIEW} bytes")]
Place: TypeAlias = Annotated[tuple[Namespace, Key] | None, Reader(read_place)]
_ITEMS = Meta(max_length=MAX_KEYS_LIMIT, description="array of binary, nil or failure code")


class Scan(NamedTuple):
    """Read one page of the keys of a state: from key group `start_group` on, in it those after the place `after`.

    `namespaces` has no or one namespace: the only one. `prefix`: the text or bytes that the first column begins with,
    or the first columns. `view` is that of the page before, empty in the first request.
    """

    id: RequestId
    deadline_ms: Deadline
    target: Annotated[Target, Reader(read_target)]
    namespaces: Annotated[tuple[Namespace, ...], Reader(read_namespaces)]
    prefix: Annotated[Prefix, Reader(read_prefix)]
    start_group: Groups
    stop_group: Groups
    after: Place
    view: View
    options: Annotated[Mapping[str, Detail], Reader(read_scan_options)]

    @property
    def limit(self) -> int | None:
        """How many keys the client still wants, None for all. 0: none, the view is not needed any more."""
        return self._integer("limit")

    @property
    def max_bytes(self) -> int:
        """The largest payload that the page may have."""
        found = self._integer("max_bytes")
        return MAX_FRAME_LIMIT if found is None else max(found, MIN_MAX_FRAME)

    def _integer(self, option: str) -> int | None:
        found = self.options.get(option) if self.options else None
        return found if isinstance(found, int) else None


class Page(NamedTuple):
    """The answer to Scan: some keys, and where the next page begins.

    The scan is over when `next_group` is the request's `stop_group`. A page may have no keys. `selected` is how many
    there were. `namespaces` has that of each key, or is empty when all are void; `results` has the value or failure
    code of each key, or is empty when none were asked for. `view` is for the next request; empty: none.
    """

    id: RequestId
    epoch: Annotated[int, _integer(NO_EPOCH, MAX_INT64)]
    fingerprint: Name
    view: View
    next_group: Groups
    after: Place
    selected: Annotated[int, _integer(0, MAX_INT64)]
    namespaces: Annotated[tuple[Namespace, ...], Reader(read_page_namespaces)]
    keys: Annotated[tuple[Key, ...], Reader(read_page_keys)]
    results: Annotated[tuple[bytes | int, ...], _ITEMS]


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
    max_parallelism: Annotated[int, _integer(1, MAX_PARALLELISM_LIMIT)]
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
    """List the states of a job, or the jobs when `job` is None."""

    id: RequestId
    deadline_ms: Deadline
    job: Annotated[Name | None, Meta(description=f"nil or string of 1..{MAX_NAME} characters")]


class Description(NamedTuple):
    """The answer to Describe."""

    id: RequestId
    entries: Annotated[
        tuple[Mapping[str, Any], ...],
        Reader(_read_entries, Annotated[tuple[Raw, ...], _array(0, MAX_ENTRIES, "maps")]),
    ]


class Ping(NamedTuple):
    """Check that the peer is alive, and measure the round trip."""

    id: RequestId


class Pong(NamedTuple):
    """The answer to Ping."""

    id: RequestId


class Poll(NamedTuple):
    """Ask for the committed changes of a range of key groups from an epoch on, and wait for them if there are none.

    `namespaces` and `keys` select changes: empty ones select all. `prefix` selects keys as that of a Scan. `position`
    is that of the answer before, where it ended within `from_epoch`. With no change, the answer comes after `wait_ms`.
    The answer has at most `max_bytes` bytes.
    """

    id: RequestId
    deadline_ms: Deadline
    target: Annotated[Target, Reader(read_target)]
    namespaces: Annotated[tuple[Namespace, ...], Reader(read_namespaces)]
    keys: Annotated[tuple[Key, ...], Reader(read_any_keys)]
    prefix: Annotated[Prefix, Reader(read_prefix)]
    start_group: Annotated[int, _integer(0, MAX_PARALLELISM_LIMIT - 1)]
    stop_group: Annotated[int, _integer(1, MAX_PARALLELISM_LIMIT)]
    from_epoch: Annotated[int, _integer(0, MAX_INT64)]
    position: Annotated[bytes, Meta(max_length=MAX_POSITION, description=f"binary of at most {MAX_POSITION} bytes")]
    wait_ms: Deadline
    max_bytes: Annotated[int, _integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)]


class Run(NamedTuple):
    """Changes of one epoch, operation and namespace; each column has one item for each change.

    `operation` is a number of `qstate.backends.contract.ChangeOp`. Only map entries have `map_keys`. A deletion has no
    `values`.
    """

    epoch: int
    operation: int
    namespace: Namespace
    keys: Sequence[Key]
    map_keys: Sequence[Key] | None
    values: Sequence[bytes] | None


class Changes(NamedTuple):
    """The answer to Poll: changes of the key groups up to `stop_group` (exclusive), in the order of their epochs.

    The next poll begins at `next_epoch` and `position`. With an empty position, all epochs before `next_epoch` are
    complete. `committed` is the newest committed epoch of the node.
    """

    id: RequestId
    fingerprint: Name
    stop_group: Annotated[int, _integer(1, MAX_PARALLELISM_LIMIT)]
    next_epoch: Annotated[int, _integer(0, MAX_INT64)]
    position: Annotated[bytes, Meta(max_length=MAX_POSITION, description=f"binary of at most {MAX_POSITION} bytes")]
    committed: Annotated[int, _integer(NO_EPOCH, MAX_INT64)]
    runs: Annotated[
        tuple[Run, ...],
        Reader(
            _read_runs,
            Annotated[
                tuple[_Run, ...],
                _array(0, MAX_RUNS, "arrays [epoch, operation, namespace, keys, map keys or nil, values or nil]"),
            ],
        ),
    ]


class Cancel(NamedTuple):
    """The client waits no longer for the answer to the request of this id. It has no answer of its own."""

    id: RequestId


class Failure(NamedTuple):
    """A request failed. With id 0 the connection failed: this is its close notice."""

    id: Annotated[int, _integer(0, MAX_ID)]
    code: Annotated[int, _integer(1, _MAX_CODE)]
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
            if type(result) is int and (not 0 < result <= _MAX_CODE or epoch != NO_EPOCH):
                raise malformed("results", f"failure code 1..{_MAX_CODE} with epoch {NO_EPOCH}")


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


def _check_poll(message: Poll, limits: Limits) -> None:
    if message.stop_group <= message.start_group:
        raise malformed("stop_group", f"integer {message.start_group + 1}..{MAX_PARALLELISM_LIMIT}")
    if message.keys and message.prefix is not None:
        raise malformed("prefix", "nil, as there are keys")


#: By operation, whether its changes have map keys, and whether they have values.
_COLUMNS = {1: (False, True), 2: (False, False), 3: (True, True), 4: (True, False), 5: (False, True)}


def _check_changes(message: Changes, limits: Limits) -> None:
    least, most = 0, message.next_epoch - (not message.position)
    for run in message.runs:
        check_integer(run.epoch, "runs.epoch", least, most)
        least = run.epoch
        for column, wanted in zip((run.map_keys, run.values), _COLUMNS[run.operation], strict=True):
            if (column is not None) is not wanted or (column is not None and len(column) != len(run.keys)):
                raise malformed("runs", "columns of one length, which the operation has")


def _check_scan(message: Scan, limits: Limits) -> None:
    check_integer(message.stop_group, "stop_group", message.start_group + 1, MAX_PARALLELISM_LIMIT)


def _check_page(message: Page, limits: Limits) -> None:
    number = len(message.keys)
    if len(message.results) not in (0, number):
        raise malformed("results", f"array of 0 or {number}, one for each key")
    if len(message.namespaces) not in (0, number):
        raise malformed("namespaces", f"array of 0 or {number}, one for each key")
    if number and message.selected != number:
        raise malformed("selected", f"{number}, the number of keys")
    for result in message.results:
        if type(result) is int and not 0 < result <= _MAX_CODE:
            raise malformed("results", f"failure code 1..{_MAX_CODE}")


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
    Form(15, Poll, _check_poll),
    Form(16, Changes, _check_changes),
    Form(13, Scan, _check_scan),
    Form(14, Page, _check_page),
    Form(17, Cancel),
)
