"""What a client sends, read and judged by the protocol reference alone.

Rules of this module: bytes in, requests and faults out; no sockets, and nothing of `qstate.protocol`. A fault names
the rule that it breaks. Requests are kept as they came, faulty or not: a law decides what follows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from qstate_conformance.client.frames import CANCEL, DESCRIBE, GET, GET_PART, HELLO, LOCATE, PING, POLL, SCAN
from qstate_conformance.packing import Ext, Pairs

__all__ = ["MAX_ID", "Limits", "Request", "faults_of", "read_payload"]

MAX_ID = (1 << 32) - 1
MAX_FRAME = (1 << 28) - 1
MAX_NAME = 255
MAX_MAP = 64
MAX_GROUPS = 32768
MAX_VIEW = 64
STATE_ID_BYTES = 16
#: The number of elements of each message; Hello may have more.
SIZES = {HELLO: 5, GET: 7, GET_PART: 12, SCAN: 11, POLL: 13, LOCATE: 5, DESCRIBE: 4, PING: 2, CANCEL: 2}
NAMES = {
    HELLO: "Hello",
    GET: "Get",
    GET_PART: "GetPart",
    SCAN: "Scan",
    POLL: "Poll",
    LOCATE: "Locate",
    DESCRIBE: "Describe",
    PING: "Ping",
    CANCEL: "Cancel",
}
#: Where a message has keys, columns and namespaces, which alone may contain extension types.
KEYS_AT = {GET: (4, 6), GET_PART: (4, 6, 8, 9), SCAN: (4, 5, 8), POLL: (4, 5, 6)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the Welcome allows. Before it, only the Hello may be sent."""

    max_frame: int
    max_keys: int


@dataclass(frozen=True, slots=True)
class Request:
    """One message of the client. `at` is when its last byte came, in seconds of `time.monotonic`."""

    at: float
    connection: int
    payload: bytes
    elements: tuple[Any, ...]

    @property
    def type(self) -> int:
        return self.elements[0]  # type: ignore[no-any-return]

    @property
    def id(self) -> int:
        return self.elements[1]  # type: ignore[no-any-return]

    @property
    def deadline_ms(self) -> int:
        return self.elements[2]  # type: ignore[no-any-return]

    @property
    def target(self) -> Any:
        """Of a Get, Scan or Poll: (job, state), or a state id."""
        return self.elements[3]

    @property
    def namespace(self) -> Any:
        return self.elements[4]

    @property
    def options(self) -> Mapping[str, Any]:
        """Of a Get or Scan."""
        return dict(self.elements[10 if self.type == SCAN else 5].entries)

    @property
    def keys(self) -> tuple[Any, ...]:
        return self.elements[6]  # type: ignore[no-any-return]

    @property
    def groups(self) -> tuple[int, int]:
        """Of a Scan: the first key group, and the one before which it ends."""
        return self.elements[6], self.elements[7]

    @property
    def poll_groups(self) -> tuple[int, int]:
        """Of a Poll: the first key group, and the one before which it ends."""
        return self.elements[7], self.elements[8]

    @property
    def poll_place(self) -> tuple[int, bytes]:
        """Of a Poll: the epoch that it begins with, and the position in it."""
        return self.elements[9], self.elements[10]

    @property
    def after(self) -> Any:
        """Of a Scan: the place after which the page begins, [namespace, key], or None."""
        return self.elements[8]

    @property
    def view(self) -> bytes:
        """Of a Scan."""
        return self.elements[9]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{NAMES.get(self.type, self.type)} {self.elements[1:]} on connection {self.connection}>"


def read_payload(payload: bytes) -> tuple[Any, ...] | None:
    """The elements of a payload, or None when it is not one MessagePack array of a type and an id."""
    try:
        found = msgpack.unpackb(
            payload, use_list=False, strict_map_key=False, object_pairs_hook=_pairs, ext_hook=Ext, timestamp=0
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not isinstance(found, tuple) or isinstance(found, Ext | Pairs) or len(found) < 2:
        return None
    found = _without_timestamps(found)
    return found if _is_integer(found[0], 0, MAX_ID) and _is_integer(found[1], 0, MAX_ID) else None


def faults_of(request: Request, limits: Limits | None) -> list[str]:
    """Every rule that a message breaks. `limits` is None before the Welcome."""
    return list(_faults(request, limits))


def _faults(request: Request, limits: Limits | None) -> Iterator[str]:
    elements, kind = request.elements, request.type
    name = NAMES.get(kind)
    if name is None:
        yield f"a client sends no message of type {kind} (the table of messages)"
        return
    rest = tuple(part for at, part in enumerate(elements) if at not in KEYS_AT.get(kind, ()))
    if any(isinstance(part, Ext) for part in _parts(rest)):
        yield f"P-MSG-9: {name} contains an extension type"
    size = SIZES[kind]
    if len(elements) < size or (kind != HELLO and len(elements) > size + 1):
        yield f"P-MSG-3: {name} has {len(elements)} elements, its table {size}"
        return
    if kind != HELLO and len(elements) > size:
        yield from _attribute_faults(name, elements[size])
    most = 65536 if limits is None else limits.max_frame
    if len(request.payload) > most:
        yield f"P-FRAME-2: {name} is a payload of {len(request.payload)} bytes, over the limit of {most}"
    if kind == HELLO:
        yield from _hello_faults(elements)
        return
    if limits is None:
        yield f"P-HELLO-1: {name} was sent before the Welcome"
    if request.id == 0:
        yield f"P-MSG-2: {name} has the id 0"
    if kind not in (PING, CANCEL) and not _is_integer(elements[2], 0, MAX_ID):
        yield f"deadline_ms of {name} is {elements[2]!r}, not an integer of 0 to {MAX_ID} (P-MSG-6)"
    if kind in KEYS_AT:
        yield from _target_faults(request.target)
        yield from {GET: _get_faults, GET_PART: _part_faults, SCAN: _scan_faults, POLL: _poll_faults}[kind](
            request, limits
        )
    elif kind == LOCATE and not all(map(_is_name, elements[3:5])):
        yield f"Locate names {elements[3:5]!r}: a name is a string of 1 to {MAX_NAME} characters (P-MSG-5)"
    elif kind == DESCRIBE and elements[3] is not None and not _is_name(elements[3]):
        yield f"Describe names {elements[3]!r}: nil, or a string of 1 to {MAX_NAME} characters (P-MSG-5)"


def _hello_faults(elements: tuple[Any, ...]) -> Iterator[str]:
    _, request_id, versions, token, client = elements[:5]
    if request_id != 0:
        yield f"P-MSG-2: Hello has the id {request_id}"
    if not _is_array(versions) or not 1 <= len(versions) <= 64:
        yield f"versions of Hello are {versions!r}, not an array of 1 to 64"
    elif not all(_is_integer(version, 1, 65535) for version in versions):
        yield f"versions of Hello are {versions!r}, not integers of 1 to 65535 (P-MSG-6)"
    if token is not None and (not isinstance(token, bytes) or len(token) > 4096):
        yield f"the token of Hello is {token!r}, neither nil nor binary of at most 4096 bytes (P-MSG-5)"
    if not isinstance(client, str) or len(client) > MAX_NAME:
        yield f"client of Hello is {client!r}, not a string of at most {MAX_NAME} characters (P-MSG-5)"

    features = elements[5] if len(elements) > 5 else ()
    max_frame = elements[6] if len(elements) > 6 else MAX_FRAME
    if not _is_array(features) or len(features) > 32 or not all(map(_is_name, features)):
        yield f"features of Hello are {features!r}, not an array of at most 32 names"
    if not _is_integer(max_frame, 4096, MAX_FRAME):
        yield f"max_frame of Hello is {max_frame!r}, not an integer of 4096 to {MAX_FRAME} (P-MSG-6)"


def _attribute_faults(name: str, attributes: Any) -> Iterator[str]:
    if not isinstance(attributes, Pairs):
        yield f"P-MSG-3: the attributes of {name} are {attributes!r}, not a map"
        return
    yield from _option_faults(attributes)
    for each, _ in attributes.entries:
        if not str(each).startswith("?"):
            yield f"P-ATTR-2: {name} has the attribute {each!r}, which this version does not define"


def _target_faults(target: Any) -> Iterator[str]:
    if isinstance(target, bytes):
        if len(target) != STATE_ID_BYTES:
            yield f"the state id {target!r} has not {STATE_ID_BYTES} bytes"
    elif not _is_array(target) or len(target) != 2 or not all(map(_is_name, target)):
        yield f"the target {target!r} is neither [job, state] of two names nor a state id (P-MSG-5)"


def _get_faults(request: Request, limits: Limits | None) -> Iterator[str]:
    namespace, options, keys = request.elements[4:7]
    if namespace is not None:
        yield from _key_faults(namespace, "namespace")
    yield from _option_faults(options)
    if not _is_array(keys) or not keys:
        yield f"keys are {keys!r}, not an array of at least one"
        return
    yield from _keys_faults(request, keys, limits)


def _part_faults(request: Request, limits: Limits | None) -> Iterator[str]:
    namespace, options, key, part, map_keys, after, start, length = request.elements[4:12]
    if namespace is not None:
        yield from _key_faults(namespace, "namespace")
    yield from _option_faults(options)
    yield from _key_faults(key, "key")
    if part not in ("entries", "page", "slice", "size", "bytes"):
        yield f"the part {part!r} is none that the page knows"
    if _is_array(map_keys):
        yield from _keys_faults(request, map_keys, limits)
    else:
        yield f"map_keys are {map_keys!r}, not an array"
    if after is not None:
        yield from _key_faults(after, "place")
    if not (_is_integer(start, 0, (1 << 63) - 1) and _is_integer(length, 0, (1 << 63) - 1)):
        yield f"start and length are {start!r} and {length!r}, not integers from 0 (P-MSG-6)"
    if (part == "entries" and not map_keys) or (part == "page" and not length):
        yield f"P-PART-6: a GetPart for nothing: {part} of {map_keys!r}, at most {length!r}"


def _keys_faults(request: Request, keys: tuple[Any, ...], limits: Limits | None) -> Iterator[str]:
    if limits is not None and len(keys) > limits.max_keys:
        yield f"{NAMES[request.type]} has {len(keys)} keys, max_keys of the Welcome is {limits.max_keys}"
    for key in keys:
        yield from _key_faults(key, "key")


def _scan_faults(request: Request, limits: Limits | None) -> Iterator[str]:
    namespaces, prefix, start, stop, after, view, options = request.elements[4:11]
    yield from _selection_faults(namespaces, prefix, start, stop)
    if after is not None:
        if not _is_array(after) or len(after) != 2:
            yield f"after is {after!r}, neither nil nor [namespace, key]"
        else:
            yield from _key_faults(after[1], "place")
            if after[0] is not None:
                yield from _key_faults(after[0], "place")
    if not isinstance(view, bytes) or len(view) > MAX_VIEW:
        yield f"view is {view!r}, not binary of at most {MAX_VIEW} bytes (P-MSG-5)"
    yield from _option_faults(options)


def _poll_faults(request: Request, limits: Limits | None) -> Iterator[str]:
    namespaces, keys, prefix, start, stop, epoch, position, wait_ms, max_bytes = request.elements[4:13]
    yield from _selection_faults(namespaces, prefix, start, stop)
    if _is_array(keys):
        yield from _keys_faults(request, keys, limits)
    else:
        yield f"keys of Poll are {keys!r}, not an array"
    if prefix is not None and keys:
        yield f"the prefix {prefix!r} comes beside keys"
    if not _is_integer(epoch, 0, (1 << 63) - 1):
        yield f"from_epoch is {epoch!r}, not an integer from 0 (P-MSG-6)"
    if not isinstance(position, bytes) or len(position) > MAX_VIEW:
        yield f"position is {position!r}, not binary of at most {MAX_VIEW} bytes (P-MSG-5)"
    if not _is_integer(wait_ms, 0, MAX_ID) or not _is_integer(max_bytes, 4096, MAX_FRAME):
        yield f"wait_ms and max_bytes are {wait_ms!r} and {max_bytes!r}, not integers within their bounds (P-MSG-6)"


def _selection_faults(namespaces: Any, prefix: Any, start: Any, stop: Any) -> Iterator[str]:
    if not _is_array(namespaces) or len(namespaces) > 1:
        yield f"namespaces are {namespaces!r}, not an array of at most one"
    elif namespaces and namespaces[0] is not None:
        yield from _key_faults(namespaces[0], "namespace")
    if _is_array(prefix):
        if not 1 <= len(prefix) <= 64 or any(map(_is_array, prefix)):
            yield f"the prefix {prefix!r} is not an array of 1 to 64 columns"
        for column in prefix:
            yield from _key_faults(column, "prefix")
    elif prefix is not None and not isinstance(prefix, str | bytes):
        yield f"the prefix {prefix!r} is neither nil, string, binary nor an array of columns (P-MSG-5)"
    if not (_is_integer(start, 0, MAX_GROUPS - 1) and _is_integer(stop, start + 1, MAX_GROUPS)):
        yield f"the key groups {start!r} to {stop!r} are no range within 0 to {MAX_GROUPS} (P-MSG-6)"


def _option_faults(options: Any) -> Iterator[str]:
    if not isinstance(options, Pairs):
        yield f"options are {options!r}, not a map"
        return
    names = [name for name, _ in options.entries]
    if len(names) > MAX_MAP or not all(map(_is_name, names)) or len(set(names)) != len(names):
        yield f"P-MSG-7: the map of options has the names {names!r}"
    for name, value in options.entries:
        if not _is_scalar(value):
            yield f"P-MSG-8: the option {name!r} is {value!r}, not a scalar"


def _key_faults(key: Any, field: str) -> Iterator[str]:
    if _is_array(key):
        if len(key) < 2:
            yield f"P-KEY-1: the {field} {key!r} is an array of fewer than two columns"
        columns = key
    else:
        columns = (key,)
    for column in columns:
        if isinstance(column, Ext):
            yield from _extension_faults(column, field)
        elif not (isinstance(column, str | bytes | bool) or _is_integer(column, -(1 << 63), (1 << 63) - 1)):
            yield f"P-KEY-2: the column {column!r} of a {field} is no string, binary, bigint or boolean"


def _extension_faults(column: Ext, field: str) -> Iterator[str]:
    code, payload = column
    if code == -1:
        nanoseconds = msgpack.Timestamp.from_bytes(payload).nanoseconds
        sound = nanoseconds % 1000 == 0
    else:
        sound = code in _TEXTS and re.fullmatch(_TEXTS[code], payload) is not None
    if not sound:
        yield f"P-KEY-6: the column {column!r} of a {field} is no date, timestamp or decimal"


#: By type, what is wrong with the fields after the target.
_FAULTS_OF = {GET: _get_faults, GET_PART: _part_faults, SCAN: _scan_faults, POLL: _poll_faults}
#: What a date and a decimal look like.
_TEXTS = {3: rb"\d{4}-\d\d-\d\d", 4: rb"(?!-[0.]*$)-?(0|[1-9]\d*)(\.\d+)?"}


def _without_timestamps(value: Any) -> Any:
    """Timestamps as the extension type that they are."""
    if isinstance(value, msgpack.Timestamp):
        return Ext(-1, value.to_bytes())
    if isinstance(value, Pairs):
        return Pairs(tuple((key, _without_timestamps(entry)) for key, entry in value.entries))
    return tuple(map(_without_timestamps, value)) if _is_array(value) else value


def _pairs(entries: Any) -> Pairs:
    return Pairs(tuple(entries))


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, Pairs):
        for entry in value.entries:
            for part in entry:
                yield from _parts(part)
    elif _is_array(value):
        for part in value:
            yield from _parts(part)


def _is_array(value: Any) -> bool:
    return isinstance(value, tuple) and not isinstance(value, Ext | Pairs)


def _is_integer(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_NAME


def _is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | str) or _is_integer(value, -(1 << 63), (1 << 63) - 1)
