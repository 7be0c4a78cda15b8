"""What a server may send, held to the tables of the protocol reference.

Rules of this module: it reads payloads and refuses what breaks a rule, naming the rule. It does not know which
request an answer belongs to (`wire` does), nor how qstate reads messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgpack

from qstate_conformance.codes import Type
from qstate_conformance.packing import extension_column

__all__ = [
    "Answer",
    "Changes",
    "Description",
    "Failure",
    "Location",
    "Owner",
    "Page",
    "Part",
    "Pong",
    "Run",
    "ServerMessage",
    "Values",
    "Violation",
    "Welcome",
    "read_message",
]


_MAX_U32 = (1 << 32) - 1
#: The types of the messages whose keys may be extension types.
_WITH_KEYS = tuple(bytes((kind,)) for kind in (Type.PAGE, Type.PART, Type.CHANGES))


class Violation(AssertionError):
    """The server broke a rule; the message starts with the rule's id."""


class Welcome(NamedTuple):
    version: int
    server: str
    features: tuple[str, ...]
    max_frame: int
    max_keys: int
    max_in_flight: int = _MAX_U32
    idle_timeout_ms: int = 0


class Values(NamedTuple):
    id: int
    epochs: tuple[int, ...]
    results: tuple[bytes | int | None, ...]
    fingerprint: str


class Owner(NamedTuple):
    start: int
    stop: int
    host: str
    port: int
    state_id: bytes


class Location(NamedTuple):
    id: int
    state: Mapping[str, Any]
    max_parallelism: int
    owners: tuple[Owner, ...]

    def owner_of(self, group: int) -> Owner | None:
        """The owner of a key group, or None in a gap."""
        return next((owner for owner in self.owners if owner.start <= group < owner.stop), None)


class Description(NamedTuple):
    id: int
    entries: tuple[Mapping[str, Any], ...]
    #: Whether it has the attribute `?more`.
    more: bool = False


class Pong(NamedTuple):
    id: int


class Failure(NamedTuple):
    id: int
    code: int
    details: Mapping[str, Any]


class Run(NamedTuple):
    epoch: int
    operation: int
    namespace: Any
    keys: tuple[Any, ...]
    map_keys: tuple[Any, ...] | None
    values: tuple[bytes, ...] | None


class Changes(NamedTuple):
    id: int
    fingerprint: str
    stop_group: int
    next_epoch: int
    position: bytes
    committed: int
    runs: tuple[Run, ...]
    #: Its attribute `?staleness_ms`; False without one.
    staleness_ms: Any = False


class Page(NamedTuple):
    id: int
    epoch: int
    fingerprint: str
    view: bytes
    next_group: int
    after: tuple[Any, Any] | None
    selected: int
    namespaces: tuple[Any, ...]
    keys: tuple[Any, ...]
    results: tuple[bytes | int, ...]


class Part(NamedTuple):
    id: int
    epoch: int
    fingerprint: str
    result: bytes | None
    after: Any
    total: int
    version: bytes


Answer: TypeAlias = Values | Part | Page | Changes | Location | Description | Pong | Failure
ServerMessage: TypeAlias = Welcome | Answer

_MAX_INT64 = (1 << 63) - 1
_MAX_FRAME = (1 << 28) - 1
_STATE_TEXTS = ("name", "kind", "serializer", "fingerprint")
_STATE_ARRAYS = ("key_types", "namespace_types", "capabilities")


def read_message(payload: bytes) -> ServerMessage:
    """The message of a payload. Raises `Violation` for the rule that it breaks."""
    fields = _fields(payload)
    kind, number, rest = fields[0], fields[1], fields[2:]
    if kind == Type.WELCOME:
        _require(number == 0, "P-MSG-2", f"Welcome has the id 0, not {number}")
        _require(len(rest) >= 5, "P-HELLO-5", f"Welcome has at least 5 fields, not {len(rest)}")
        return _welcome(rest[:7])
    if kind not in _READERS:
        raise Violation(f"P-MSG-1: a server does not send type {kind}")
    _require(number > 0 or kind == Type.FAILURE, "P-MSG-2", f"an answer of type {kind} has the id 0")
    size, reader = _READERS[kind]
    _require(len(rest) in (size, size + 1), "P-MSG-3", f"type {kind} has {size} fields, not {len(rest)}")
    for attributes in rest[size:]:
        _require(type(attributes) is dict, "P-MSG-3", f"{attributes!r} after the fields of type {kind}")
        known = all(name.startswith("?") and _is_scalar(value) for name, value in attributes.items())
        _require(known, "P-ATTR-2", f"the attributes {attributes!r}")
    found = reader(number, *rest[:size])
    if isinstance(found, Description) and rest[size:] and rest[size].get("?more") is True:
        return found._replace(more=True)
    if isinstance(found, Changes) and rest[size:] and "?staleness_ms" in rest[size]:
        age = rest[size]["?staleness_ms"]
        _require(age is None or _is_integer(age, 0, _MAX_INT64), "P-POLL-11", f"{age!r} as an age in milliseconds")
        return found._replace(staleness_ms=age)
    return found


def _require(sound: bool, rule: str, what: str) -> None:
    if not sound:
        raise Violation(f"{rule}: {what}")


def _fields(payload: bytes) -> tuple[Any, ...]:
    hook = extension_column if payload[1:2] in _WITH_KEYS else _extension
    try:
        found = msgpack.unpackb(
            payload, use_list=False, strict_map_key=False, object_pairs_hook=_map, timestamp=3, ext_hook=hook
        )
    except msgpack.ExtraData as exc:
        raise Violation(f"P-MSG-1: bytes after the message: {exc.extra!r}") from exc
    except UnicodeDecodeError as exc:
        raise Violation(f"P-MSG-5: a string is not UTF-8: {exc}") from exc
    except (ValueError, TypeError, msgpack.UnpackException) as exc:
        raise Violation(f"P-MSG-1: a payload is not MessagePack: {exc!r} in {payload[:64].hex()}") from exc
    sound = type(found) is tuple and len(found) >= 2 and all(_is_integer(item, 0, _MAX_U32) for item in found[:2])
    _require(sound, "P-MSG-1", f"a payload is an array that starts with type and id, not {found!r:.200}")
    return found  # type: ignore[no-any-return]


def _map(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    items = list(pairs)
    _require(len(items) <= 64, "P-MSG-7", f"a map of {len(items)} entries")
    for name, _ in items:
        _require(type(name) is str and 1 <= len(name) <= 255, "P-MSG-7", f"{name!r} as a map's key")
    found = dict(items)
    _require(len(found) == len(items), "P-MSG-7", f"a map with a key twice: {items!r:.200}")
    return found


def _extension(code: int, data: bytes) -> Any:
    raise Violation(f"P-MSG-9: extension type {code} in a message")


def _is_integer(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_name(value: Any, low: int = 1) -> bool:
    return type(value) is str and low <= len(value) <= 255


def _is_scalar(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (str, bool) or _is_integer(value, -_MAX_INT64 - 1, _MAX_INT64)


def _welcome(fields: tuple[Any, ...]) -> Welcome:
    version, server, features, max_frame, max_keys, *more = fields
    _require(_is_integer(version, 1, 65_535), "P-MSG-6", f"the Welcome's version is {version!r}")
    _require(_is_name(server, 0), "P-MSG-5", f"the Welcome's server is {server!r}")
    named = type(features) is tuple and len(features) <= 32 and all(_is_name(name) for name in features)
    _require(named, "P-MSG-5", f"the Welcome's features are {features!r}")
    _require(_is_integer(max_frame, 4096, _MAX_FRAME), "P-FRAME-2", f"the Welcome's max_frame is {max_frame!r}")
    _require(_is_integer(max_keys, 1, 1 << 20), "P-MSG-6", f"the Welcome's max_keys is {max_keys!r}")
    for low, value in zip((1, 0), more, strict=False):
        _require(_is_integer(value, low, _MAX_U32), "P-MSG-6", f"the Welcome's last elements are {more!r}")
    return Welcome(version, server, features, max_frame, max_keys, *more)


def _values(number: int, epochs: Any, results: Any, fingerprint: Any) -> Values:
    _require(type(epochs) is tuple and type(results) is tuple, "P-GET-1", "epochs and results are arrays")
    _require(len(epochs) == len(results) > 0, "P-GET-1", f"{len(epochs)} epochs for {len(results)} results")
    for epoch, result in zip(epochs, results, strict=True):
        _require(_is_integer(epoch, -1, _MAX_INT64), "P-MSG-6", f"{epoch!r} as an epoch")
        if result is not None and type(result) is not bytes:
            _require(_is_integer(result, 1, 65_535), "P-GET-2", f"{result!r} as a result")
            _require(epoch == -1, "P-GET-2", f"the failure {result} has the epoch {epoch}")
    _require(_is_name(fingerprint, 0), "P-GET-16", f"{fingerprint!r} as a fingerprint")
    needless = all(type(result) is int for result in results)
    _require(bool(fingerprint) or needless, "P-GET-16", "results without a fingerprint")
    return Values(number, epochs, results, fingerprint)


#: By operation, whether its changes have map keys, and values.
_COLUMNS = {1: (False, True), 2: (False, False), 3: (True, True), 4: (True, False), 5: (False, True)}


def _changes(number: int, *fields: Any) -> Changes:
    fingerprint, stop_group, next_epoch, position, committed, runs = fields
    _require(_is_name(fingerprint), "P-GET-16", f"{fingerprint!r} as a fingerprint")
    _require(_is_integer(stop_group, 1, 32_768), "P-MSG-6", f"{stop_group!r} as a key group")
    _require(_is_integer(next_epoch, 0, _MAX_INT64), "P-MSG-6", f"{next_epoch!r} as an epoch")
    _require(_is_integer(committed, -1, _MAX_INT64), "P-MSG-6", f"{committed!r} as an epoch")
    _require(type(position) is bytes and len(position) <= 64, "P-MSG-5", f"{position!r} as a position")
    _require(type(runs) is tuple and len(runs) <= 65_536, "P-POLL-1", "runs are an array")
    found, least, most = [], 0, next_epoch - (not position)
    for run in runs:
        _require(type(run) is tuple and len(run) == 6, "P-POLL-1", f"a run is six elements, not {run!r}")
        _require(_is_integer(run[0], least, most), "P-POLL-2", f"epoch {run[0]!r} after {least}, before {next_epoch}")
        _require(run[1] in _COLUMNS, "P-POLL-1", f"{run[1]!r} as an operation")
        least = run[0]
        _require(type(run[3]) is tuple and len(run[3]) > 0, "P-POLL-1", f"{run[3]!r} as keys")
        for column, wanted in zip(run[4:], _COLUMNS[run[1]], strict=True):
            sound = column is None if not wanted else type(column) is tuple and len(column) == len(run[3])
            _require(sound, "P-POLL-1", f"{column!r} beside {len(run[3])} keys of operation {run[1]}")
        found.append(Run(*run))
    return Changes(number, fingerprint, stop_group, next_epoch, position, committed, tuple(found))


def _page(number: int, *fields: Any) -> Page:
    epoch, fingerprint, view, next_group, after, selected, namespaces, keys, results = fields
    _require(_is_integer(epoch, -1, _MAX_INT64), "P-MSG-6", f"{epoch!r} as an epoch")
    _require(_is_name(fingerprint), "P-GET-16", f"{fingerprint!r} as a fingerprint")
    _require(type(view) is bytes and len(view) <= 64, "P-SCAN-6", f"{view!r} as a view")
    _require(_is_integer(next_group, 0, 32_768), "P-SCAN-2", f"{next_group!r} as a key group")
    sound = after is None or (type(after) is tuple and len(after) == 2)
    _require(sound, "P-SCAN-2", f"{after!r} as the place of the next page")
    _require(_is_integer(selected, 0, _MAX_INT64), "P-MSG-6", f"{selected!r} as a number of keys")
    arrays = type(namespaces) is type(keys) is type(results) is tuple
    _require(arrays, "P-SCAN-1", f"keys, namespaces and results are arrays, not {keys!r:.200}")
    _require(len(results) in (0, len(keys)), "P-SCAN-3", f"{len(results)} results for {len(keys)} keys")
    _require(len(namespaces) in (0, len(keys)), "P-SCAN-1", f"{len(namespaces)} namespaces for {len(keys)} keys")
    for result in results:
        sound = type(result) is bytes or _is_integer(result, 1, 65_535)
        _require(sound, "P-SCAN-3", f"{result!r} as a result")
    return Page(number, *fields)


def _part(number: int, *fields: Any) -> Part:
    epoch, fingerprint, result, _, total, version = fields
    _require(_is_integer(epoch, -1, _MAX_INT64), "P-MSG-6", f"{epoch!r} as an epoch")
    _require(_is_name(fingerprint), "P-GET-16", f"{fingerprint!r} as a fingerprint")
    _require(result is None or type(result) is bytes, "P-PART-1", f"{result!r} as a result")
    _require(_is_integer(total, 0, _MAX_INT64), "P-MSG-6", f"{total!r} as a total")
    _require(type(version) is bytes and len(version) <= 64, "P-PART-4", f"{version!r} as a version")
    return Part(number, *fields)


def _location(number: int, state: Any, max_parallelism: Any, owners: Any) -> Location:
    _require(_is_integer(max_parallelism, 1, 32_768), "P-MSG-6", f"max_parallelism is {max_parallelism!r}")
    _require(type(owners) is tuple, "P-LOC-1", f"owners are an array, not {owners!r}")
    found, free = [], 0
    for row in owners:
        _require(type(row) is tuple and len(row) >= 5, "P-LOC-1", f"an owner is five elements, not {row!r}")
        start, stop, host, port, state_id = row[:5]
        ranges = _is_integer(start, free, max_parallelism - 1) and _is_integer(stop, 1, max_parallelism)
        _require(ranges and start < stop, "P-LOC-1", f"key groups {start!r} to {stop!r} after {free}")
        _require(_is_name(host) and _is_integer(port, 1, 65_535), "P-LOC-1", f"{host!r}:{port!r} as an address")
        _require(type(state_id) is bytes and len(state_id) == 16, "P-LOC-3", f"{state_id!r} as a state id")
        found.append(Owner(start, stop, host, port, state_id))
        free = stop
    return Location(number, _state(state), max_parallelism, tuple(found))


def _state(found: Any) -> Mapping[str, Any]:
    _require(type(found) is dict, "P-DESC-1", f"a state is described by a map, not {found!r}")
    _require(all(_is_name(found.get(name)) for name in _STATE_TEXTS), "P-DESC-1", f"{_STATE_TEXTS}: {found}")
    _require(_is_integer(found.get("serializer_version"), 1, _MAX_INT64), "P-DESC-1", f"serializer_version: {found}")
    _require(type(found.get("value_type")) is str, "P-DESC-1", f"value_type: {found}")
    for name in _STATE_ARRAYS:
        items = found.get(name)
        if name == "namespace_types" and name in found and items is None:
            continue
        named = type(items) is tuple and len(items) <= 64 and all(_is_name(item) for item in items)
        _require(named, "P-DESC-1", f"{name} is an array of names: {found}")
    _described(found)
    return found  # type: ignore[no-any-return]


def _described(found: Mapping[str, Any]) -> None:
    for name, value in found.items():
        items = value if type(value) is tuple else (value,)
        _require(all(_is_scalar(item) for item in items), "P-DESC-1", f"{name} holds {value!r}")


def _description(number: int, entries: Any) -> Description:
    _require(type(entries) is tuple and len(entries) <= 32_768, "P-DESC-1", f"entries are an array: {entries!r:.200}")
    for entry in entries:
        if type(entry) is dict and "kind" not in entry:
            _require(_is_name(entry.get("job")), "P-DESC-1", f"a job is described by its name, not {entry}")
            _described(entry)
        else:
            _state(entry)
    return Description(number, entries)


def _failure(number: int, code: Any, details: Any) -> Failure:
    _require(_is_integer(code, 1, 65_535), "P-MSG-6", f"{code!r} as a failure code")
    _require(type(details) is dict, "P-MSG-7", f"details are a map, not {details!r}")
    for name, value in details.items():
        _require(_is_scalar(value), "P-MSG-8", f"the detail {name} is {value!r}")
    return Failure(number, code, details)


_READERS: Mapping[int, tuple[int, Callable[..., Answer]]] = {
    Type.VALUES: (3, _values),
    Type.PAGE: (9, _page),
    Type.PART: (6, _part),
    Type.CHANGES: (6, _changes),
    Type.LOCATION: (3, _location),
    Type.DESCRIPTION: (1, _description),
    Type.PONG: (0, Pong),
    Type.FAILURE: (2, _failure),
}
