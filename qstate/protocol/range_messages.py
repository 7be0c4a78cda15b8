"""The messages about ranges of key groups: the pages of scans, and the changes that polls wait for.

Rules of this module: as in `messages`, which has the others and the type numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from msgspec import Meta, Raw, Struct

from qstate.errors import Detail
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, Namespace
from qstate.protocol.fields import (
    MAX_INT64,
    NIL,
    Prefix,
    Reader,
    check_attributes,
    check_integer,
    malformed,
    read_any_keys,
    read_keys,
    read_namespace,
    read_namespaces,
    read_page_keys,
    read_page_namespaces,
    read_place,
    read_prefix,
    read_scan_options,
    write_key,
    write_keys,
    write_place,
)
from qstate.protocol.limits import (
    MAX_FRAME_LIMIT,
    MAX_KEYS_LIMIT,
    MAX_POSITION,
    MAX_RUNS,
    MAX_VIEW,
    MIN_MAX_FRAME,
    Limits,
)
from qstate.protocol.rules import (
    MAX_CODE,
    NO_ATTRIBUTES,
    NO_EPOCH,
    Attributes,
    Deadline,
    Name,
    RequestId,
    Target,
    array,
    integer,
)

__all__ = [
    "HISTORY",
    "OWNER",
    "STALENESS",
    "Changes",
    "Page",
    "Poll",
    "Run",
    "Scan",
    "check_changes",
    "check_page",
    "check_poll",
    "check_scan",
]

#: The keys of a run are bounded by the frame alone.
_ANY_NUMBER = Limits(max_keys=MAX_KEYS_LIMIT)


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
            None if row.map_keys == NIL else read_keys(row.map_keys, _ANY_NUMBER),
            row.values,
        )
        for row in rows
    )


def _write_runs(runs: Iterable[Run]) -> tuple[Any, ...]:
    return tuple(
        (epoch, operation, write_key(namespace), write_keys(keys), map_keys and write_keys(map_keys), values)
        for epoch, operation, namespace, keys, map_keys, values in runs
    )


Groups: TypeAlias = Annotated[int, integer(0, MAX_PARALLELISM_LIMIT)]
View: TypeAlias = Annotated[bytes, Meta(max_length=MAX_VIEW, description=f"binary of 0..{MAX_VIEW} bytes")]
Namespaces: TypeAlias = Annotated[tuple[Namespace, ...], Reader(read_namespaces, write=write_keys)]
Place: TypeAlias = Annotated[tuple[Namespace, Key] | None, Reader(read_place, write=write_place)]
_ITEMS = Meta(max_length=MAX_KEYS_LIMIT, description="array of binary, nil or failure code")


class Scan(NamedTuple):
    """Read one page of the keys of a state: from key group `start_group` on, in it those after the place `after`.

    `namespaces` has no or one namespace: the only one. `prefix`: the text or bytes that the first column begins with,
    or the first columns. `view` is that of the page before, empty in the first request.
    """

    id: RequestId
    deadline_ms: Deadline
    target: Target
    namespaces: Namespaces
    prefix: Annotated[Prefix, Reader(read_prefix, write=write_place)]
    start_group: Groups
    stop_group: Groups
    after: Place
    view: View
    options: Annotated[Mapping[str, Detail], Reader(read_scan_options)]
    attributes: Attributes = NO_ATTRIBUTES

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
    epoch: Annotated[int, integer(NO_EPOCH, MAX_INT64)]
    fingerprint: Name
    view: View
    next_group: Groups
    after: Place
    selected: Annotated[int, integer(0, MAX_INT64)]
    namespaces: Annotated[tuple[Namespace, ...], Reader(read_page_namespaces, write=write_keys)]
    keys: Annotated[tuple[Key, ...], Reader(read_page_keys, write=write_keys)]
    results: Annotated[tuple[bytes | int, ...], _ITEMS]


#: The known attributes of Changes. The node may lack commits that are older than so many milliseconds, or any if None.
STALENESS = "?staleness_ms"
#: Answers with the same number are of one owner, and of one history of the state.
OWNER = "?owner"
#: Epochs with the same number are the same ones only in answers with the same history.
HISTORY = "?history"


def _read_known(raw: Raw, limits: Limits) -> Mapping[str, Detail]:
    """The known attributes. A value that is no age is as good as an age that is not known."""
    found = check_attributes(raw)
    known: dict[str, Detail] = {}
    if STALENESS in found:
        age = found[STALENESS]
        known[STALENESS] = age if type(age) is int and age >= 0 else None
    known.update((name, found[name]) for name in (OWNER, HISTORY) if type(found.get(name)) is int)
    return known


class Poll(NamedTuple):
    """Ask for the committed changes of a range of key groups from an epoch on, and wait for them if there are none.

    `namespaces` and `keys` select changes: empty ones select all. `prefix` selects keys as that of a Scan. `position`
    is that of the answer before, where it ended within `from_epoch`. With no change, the answer comes after `wait_ms`.
    The answer has at most `max_bytes` bytes.
    """

    id: RequestId
    deadline_ms: Deadline
    target: Target
    namespaces: Namespaces
    keys: Annotated[tuple[Key, ...], Reader(read_any_keys, write=write_keys)]
    prefix: Annotated[Prefix, Reader(read_prefix, write=write_place)]
    start_group: Annotated[int, integer(0, MAX_PARALLELISM_LIMIT - 1)]
    stop_group: Annotated[int, integer(1, MAX_PARALLELISM_LIMIT)]
    from_epoch: Annotated[int, integer(0, MAX_INT64)]
    position: Annotated[bytes, Meta(max_length=MAX_POSITION, description=f"binary of at most {MAX_POSITION} bytes")]
    wait_ms: Deadline
    max_bytes: Annotated[int, integer(MIN_MAX_FRAME, MAX_FRAME_LIMIT)]
    attributes: Attributes = NO_ATTRIBUTES


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
    complete. `committed` is the newest committed epoch of the node. The attribute `STALENESS` is that of a node that
    may lack commits.
    """

    id: RequestId
    fingerprint: Name
    stop_group: Annotated[int, integer(1, MAX_PARALLELISM_LIMIT)]
    next_epoch: Annotated[int, integer(0, MAX_INT64)]
    position: Annotated[bytes, Meta(max_length=MAX_POSITION, description=f"binary of at most {MAX_POSITION} bytes")]
    committed: Annotated[int, integer(NO_EPOCH, MAX_INT64)]
    runs: Annotated[
        tuple[Run, ...],
        Reader(
            _read_runs,
            Annotated[
                tuple[_Run, ...],
                array(0, MAX_RUNS, "arrays [epoch, operation, namespace, keys, map keys or nil, values or nil]"),
            ],
            _write_runs,
        ),
    ]
    attributes: Annotated[Mapping[str, Detail], Reader(_read_known)] = NO_ATTRIBUTES


def check_poll(message: Poll, limits: Limits) -> None:
    if message.stop_group <= message.start_group:
        raise malformed("stop_group", f"integer {message.start_group + 1}..{MAX_PARALLELISM_LIMIT}")
    if message.keys and message.prefix is not None:
        raise malformed("prefix", "nil, as there are keys")


#: By operation, whether its changes have map keys, and whether they have values.
_COLUMNS = {1: (False, True), 2: (False, False), 3: (True, True), 4: (True, False), 5: (False, True)}


def check_changes(message: Changes, limits: Limits) -> None:
    least, most = 0, message.next_epoch - (not message.position)
    for run in message.runs:
        check_integer(run.epoch, "runs.epoch", least, most)
        least = run.epoch
        for column, wanted in zip((run.map_keys, run.values), _COLUMNS[run.operation], strict=True):
            if (column is not None) is not wanted or (column is not None and len(column) != len(run.keys)):
                raise malformed("runs", "columns of one length, which the operation has")


def check_scan(message: Scan, limits: Limits) -> None:
    check_integer(message.stop_group, "stop_group", message.start_group + 1, MAX_PARALLELISM_LIMIT)


def check_page(message: Page, limits: Limits) -> None:
    number = len(message.keys)
    if len(message.results) not in (0, number):
        raise malformed("results", f"array of 0 or {number}, one for each key")
    if len(message.namespaces) not in (0, number):
        raise malformed("namespaces", f"array of 0 or {number}, one for each key")
    if number and message.selected != number:
        raise malformed("selected", f"{number}, the number of keys")
    for result in message.results:
        if type(result) is int and not 0 < result <= MAX_CODE:
            raise malformed("results", f"failure code 1..{MAX_CODE}")
