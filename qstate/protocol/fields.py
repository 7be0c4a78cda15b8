"""The fields of messages that MessagePack's types alone do not describe: keys, maps, targets and owners.

Rules of this module: a reader takes the undecoded bytes of one field (`msgspec.Raw`), checks them and returns the
value. It judges a value by its first byte and reads the length of an array or a map before its elements, so it decodes
nothing that the field does not allow. It raises the `QueryError` whose code and details a server answers
(`MalformedRequest`, `TooLarge`, `UnsupportedQuery`, `WrongKeyType`). A writer gives the bytes of the keys in a value.
Neither knows a message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from qstate.errors import Detail, MalformedRequest, TooLarge, UnsupportedQuery, WrongKeyType
from qstate.keys import MAX_KEY_COLUMNS, Column, Key, Namespace, decode_extension, encode_key
from qstate.protocol.limits import MAX_KEYS_LIMIT, MAX_MAP_ENTRIES, MAX_NAME, STATE_ID_BYTES, Limits

__all__ = [
    "FAULTS",
    "INTEGER_OPTIONS",
    "MAX_INT64",
    "NIL",
    "OPTIONS",
    "PARTS",
    "SCAN_INTEGER_OPTIONS",
    "SCAN_OPTIONS",
    "SHOWN",
    "Prefix",
    "Reader",
    "check_attributes",
    "check_integer",
    "check_name",
    "malformed",
    "read_any_keys",
    "read_description",
    "read_key",
    "read_keys",
    "read_map_key",
    "read_map_keys",
    "read_namespace",
    "read_namespaces",
    "read_options",
    "read_page_keys",
    "read_page_namespaces",
    "read_part",
    "read_part_options",
    "read_place",
    "read_prefix",
    "read_scalars",
    "read_scan_options",
    "read_target",
    "write_key",
    "write_keys",
    "write_place",
]

#: How the name of an option or attribute begins that a receiver ignores when it does not know it.
OPTIONAL = "?"
#: The options of a Get with a fixed set of values. Without the option the first value holds.
OPTIONS: dict[str, tuple[str, ...]] = {"isolation": ("live", "committed")}
#: What a Page has for each key of a Scan. Without the option, values.
SHOWN = ("values", "keys", "count")
#: The options of a Scan with a fixed set of values, and those that are integers from 0.
SCAN_OPTIONS: dict[str, tuple[str, ...]] = {**OPTIONS, "show": SHOWN}
#: The options that are integers from 0. Without `min_epoch` and `max_staleness_ms` nothing is demanded of the answer.
INTEGER_OPTIONS = frozenset({"max_staleness_ms", "min_epoch", "wait_ms"})
SCAN_INTEGER_OPTIONS = INTEGER_OPTIONS | {"limit", "max_bytes"}
#: The options of a GetPart that are integers from 0.
PART_INTEGER_OPTIONS = INTEGER_OPTIONS | {"max_bytes"}
#: What a GetPart may ask for.
PARTS = ("entries", "page", "slice", "size", "bytes")

MAX_INT64 = (1 << 63) - 1
#: MessagePack integers reach from -2**63 to 2**64 - 1, those of a bigint only to 2**63 - 1.
_Int64 = Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
NIL, _EMPTY_ARRAY, _EMPTY_MAP = Raw(b"\xc0"), Raw(b"\x90"), Raw(b"\x80")
_ONE = 0x91
#: What a Scan's keys begin with: any, text or bytes of their first column, or their first columns.
Prefix = str | bytes | tuple[Column, ...] | None
_ANY_NUMBER = Limits(max_keys=MAX_KEYS_LIMIT)


class Reader(NamedTuple):
    """Marks a field that a function reads: `read(found, limits)`. `found` is of the type `kind`, by default bytes.

    `write(value)` gives the keys in a value as bytes (`Raw`): the library cannot write every key itself.
    """

    read: Callable[[Any, Limits], Any]
    kind: Any = Raw
    write: Callable[[Any], Any] | None = None


def _decoder(kind: Any) -> Callable[[Any], Any]:
    return msgspec.msgpack.Decoder(kind).decode


def _extension_column(data: Any) -> Column:
    return decode_extension(bytes(data))


#: What the library raises for bytes that are not of a type.
FAULTS = (msgspec.DecodeError, UnicodeDecodeError)
_TEXTS = (*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB)
_BINARIES = (0xC4, 0xC5, 0xC6)
_INTEGERS = (*range(0x80), *range(0xCC, 0xD4), *range(0xE0, 0x100))
_BOOLEANS = (0xC2, 0xC3)
#: Of extension types: those of dates, timestamps and decimals.
_EXTENSIONS = (0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9))
#: The type of a key's column, by the first byte of its MessagePack form. The library knows no type of an extension.
_COLUMN_TYPE: dict[int, Any] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(_BINARIES, bytes),
    **dict.fromkeys(_INTEGERS, _Int64),
    **dict.fromkeys(_BOOLEANS, bool),
}
#: The decoders of a column, and of keys of one column.
_COLUMN_OF: dict[int, Callable[[Any], Any]] = {
    **dict.fromkeys(_TEXTS, _decoder(str)),
    **dict.fromkeys(_BINARIES, _decoder(bytes)),
    **dict.fromkeys(_INTEGERS, _decoder(_Int64)),
    **dict.fromkeys(_BOOLEANS, _decoder(bool)),
    **dict.fromkeys(_EXTENSIONS, _extension_column),
}
_KEYS_OF = {
    **dict.fromkeys(_TEXTS, _decoder(tuple[str, ...])),
    **dict.fromkeys(_BINARIES, _decoder(tuple[bytes, ...])),
    **dict.fromkeys(_INTEGERS, _decoder(tuple[_Int64, ...])),
    **dict.fromkeys(_BOOLEANS, _decoder(tuple[bool, ...])),
}
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_Columns = Annotated[tuple[Raw, ...], Meta(min_length=2, max_length=MAX_KEY_COLUMNS)]


class _FirstKey(msgspec.Struct, array_like=True):
    """The first of an array of keys; the decoder skips the others."""

    columns: _Columns


_columns = _decoder(_Columns)
_first_key = _decoder(_FirstKey)
_elements = _decoder(tuple[Raw, ...])
_names_and_values = _decoder(dict[str, Raw])
_scalar = _decoder(str | _Int64 | float | bool | None)
_text: Callable[[Any], str] = _decoder(str)


def malformed(field: str, expected: str) -> MalformedRequest:
    return MalformedRequest(field=field, expected=expected)


def check_integer(value: int, field: str, low: int, high: int) -> None:
    if not low <= value <= high:
        raise malformed(field, f"integer {low}..{high}")


def check_name(value: Any, field: str) -> None:
    if type(value) is not str or not 1 <= len(value) <= MAX_NAME:
        raise malformed(field, f"string of 1..{MAX_NAME} characters")


def read_target(target: tuple[str, str] | bytes, limits: Limits) -> tuple[str, str] | bytes:
    """A state id at a state server, `(job, state)` at a proxy."""
    if isinstance(target, bytes):
        if len(target) != STATE_ID_BYTES:
            raise malformed("target", f"binary of {STATE_ID_BYTES} bytes")
    else:
        check_name(target[0], "target.job")
        check_name(target[1], "target.state")
    return target


def read_namespace(raw: Raw, limits: Limits) -> Namespace:
    """A namespace, or nil for none."""
    return None if raw == NIL else _read_key(raw, {"field": "namespace"})


def read_namespaces(raw: Raw, limits: Limits) -> tuple[Namespace, ...]:
    """No namespace, which stands for all, or one."""
    _header(memoryview(raw), _ARRAYS, "namespaces", "array of 0..1", 1)
    return tuple(read_namespace(one, limits) for one in _elements(raw))


def read_any_keys(raw: Raw, limits: Limits) -> tuple[Key, ...]:
    """No key, which stands for all, or keys as `read_keys` reads them."""
    return () if raw == _EMPTY_ARRAY else read_keys(raw, limits)


def read_keys(raw: Raw, limits: Limits) -> tuple[Key, ...]:
    """One to `limits.max_keys` keys. The error names the index of the first invalid one.

    Nearly always all keys have the types of the first, so one call of the library reads them.
    """
    view = memoryview(raw)
    most = limits.max_keys
    if view[0] == _ONE:
        start = 1
    else:
        count, start = _header(view, _ARRAYS, "keys", f"array of 1..{most}")
        if not count:
            raise malformed("keys", f"array of 1..{most}")
        if count > most:
            raise TooLarge(field="keys", limit=most)
    try:
        decode = _KEYS_OF.get(view[start])
        if decode is None:
            columns = _first_key(raw).columns
            decode = _keys_of_columns(tuple(_COLUMN_TYPE[memoryview(column)[0]] for column in columns))
        keys: tuple[Key, ...] = decode(raw)
    except (*FAULTS, KeyError):
        return tuple(_read_key(key, {"field": "keys", "index": index}) for index, key in enumerate(_elements(raw)))
    return keys


def read_key(raw: Raw, limits: Limits) -> Key:
    """One key."""
    return _read_key(raw, {"field": "key"})


def read_map_key(raw: Raw, limits: Limits) -> Key | None:
    """Nil, or the map key of an entry."""
    return None if raw == NIL else _read_key(raw, {"field": "after"})


def read_map_keys(raw: Raw, limits: Limits) -> tuple[Key, ...]:
    """Any number of map keys up to `limits.max_keys`."""
    count, _ = _header(memoryview(raw), _ARRAYS, "map_keys", f"array of 0..{limits.max_keys}")
    if count > limits.max_keys:
        raise TooLarge(field="map_keys", limit=limits.max_keys)
    return tuple(_read_key(key, {"field": "map_keys", "index": index}) for index, key in enumerate(_elements(raw)))


def read_part(raw: Raw, limits: Limits) -> str:
    """Which part of a value is asked for."""
    try:
        found = _text(raw)
    except UnicodeDecodeError:
        raise malformed("message", "text in UTF-8") from None
    except msgspec.DecodeError:
        raise malformed("part", "string") from None
    if found not in PARTS:
        raise UnsupportedQuery(option="part", expected=", ".join(PARTS))
    return found


def read_prefix(raw: Raw, limits: Limits) -> Prefix:
    """Nil, the text or bytes that the first column begins with, or an array of the first columns."""
    if raw == NIL:
        return None
    view = memoryview(raw)
    if view[0] not in _ARRAYS:
        start = _read_key(view, {"field": "prefix"})
        if not isinstance(start, str | bytes):
            raise WrongKeyType(field="prefix", expected="nil, string, binary or array of columns")
        return start
    count, _ = _header(view, _ARRAYS, "prefix", f"array of 1..{MAX_KEY_COLUMNS} columns", MAX_KEY_COLUMNS)
    if not count:
        raise malformed("prefix", f"array of 1..{MAX_KEY_COLUMNS} columns")
    columns = tuple(_read_key(column, {"field": "prefix"}) for column in _elements(raw))
    if any(type(column) is tuple for column in columns):
        raise WrongKeyType(field="prefix", expected="array of columns, which are no arrays")
    return columns  # type: ignore[return-value]  # no column is a tuple


def read_place(raw: Raw, limits: Limits) -> tuple[Namespace, Key] | None:
    """Nil, or the array [namespace, key] of an entry."""
    if raw == NIL:
        return None
    count, _ = _header(memoryview(raw), _ARRAYS, "after", "nil or array of [namespace, key]", 2)
    if count != 2:
        raise malformed("after", "nil or array of [namespace, key]")
    namespace, key = _elements(raw)
    return read_namespace(namespace, limits), _read_key(key, {"field": "after"})


def read_page_keys(raw: Raw, limits: Limits) -> tuple[Key, ...]:
    """The keys of an answer, which may be none and more than a request may have: the frame bounds them."""
    count, _ = _header(memoryview(raw), _ARRAYS, "keys", "array of keys")
    return read_keys(raw, _ANY_NUMBER) if count else ()


def read_page_namespaces(raw: Raw, limits: Limits) -> tuple[Namespace, ...]:
    """The namespaces of an answer's keys, or none when all are void."""
    _header(memoryview(raw), _ARRAYS, "namespaces", "array of namespaces")
    return tuple(read_namespace(one, limits) for one in _elements(raw))


def write_key(key: Namespace) -> Raw:
    """A key or a namespace."""
    return Raw(encode_key(key))


def write_keys(keys: Iterable[Namespace]) -> tuple[Raw, ...]:
    """Keys or namespaces."""
    return tuple(map(write_key, keys))


def write_place(place: Any) -> Any:
    """A place, or the columns of a prefix. A prefix that is text or bytes, and nil, stay as they are."""
    return write_keys(place) if isinstance(place, tuple) else place


def _read_key(data: Any, where: Mapping[str, Detail]) -> Key:
    view = memoryview(data)
    try:
        decode = _COLUMN_OF.get(view[0])
        return decode(data) if decode else tuple(_COLUMN_OF[memoryview(column)[0]](column) for column in _columns(data))
    except UnicodeDecodeError:
        raise malformed("message", "text in UTF-8") from None
    except (KeyError, msgspec.DecodeError, WrongKeyType):
        raise WrongKeyType(
            **where,
            expected="string, binary, integer of 64 bits, boolean, date, timestamp or decimal, "
            f"or an array of 2..{MAX_KEY_COLUMNS} of them",
        ) from None


@lru_cache(maxsize=64)
def _keys_of_columns(types: tuple[Any, ...]) -> Callable[[Any], Any]:
    return _decoder(tuple[tuple[types], ...])  # type: ignore[valid-type]


def read_options(
    raw: Raw,
    limits: Limits,
    texts: Mapping[str, tuple[str, ...]] = OPTIONS,
    integers: frozenset[str] = INTEGER_OPTIONS,
) -> Mapping[str, Detail]:
    """Known options with known values, by default of a Get. A server must not ignore one that it does not know."""
    if raw == _EMPTY_MAP:
        return {}
    options = read_scalars(raw, "options")
    for name, value in options.items():
        if name in integers:
            if type(value) is not int or value < 0:
                raise malformed(f"options.{name}", f"integer 0..{MAX_INT64}")
        elif name not in texts:
            check_name_is_optional(name)
        elif value not in texts[name]:
            raise UnsupportedQuery(option=name, expected=", ".join(texts[name]))
    return {name: value for name, value in options.items() if not name.startswith(OPTIONAL)}


#: The options of a Scan and of a GetPart.
read_scan_options = partial(read_options, texts=SCAN_OPTIONS, integers=SCAN_INTEGER_OPTIONS)
read_part_options = partial(read_options, integers=PART_INTEGER_OPTIONS)


def check_attributes(raw: Raw) -> Mapping[str, Detail]:
    """The attributes of a message. Raises `UnsupportedQuery` for one that a receiver must not ignore."""
    found = read_scalars(raw, "attributes")
    for name in found:
        check_name_is_optional(name)
    return found


def check_name_is_optional(name: str) -> None:
    """Raise `UnsupportedQuery` unless a receiver that does not know this option or attribute may ignore it."""
    if not name.startswith(OPTIONAL):
        raise UnsupportedQuery(option=name)


def read_scalars(raw: Raw, field: str) -> dict[str, Detail]:
    """A map from names to strings, integers of 64 bits, finite floats, booleans and nil."""
    return {name: _read_scalar(value, f"{field}.{name}") for name, value in _read_map(raw, field).items()}


def read_description(raw: Raw, field: str) -> dict[str, Any]:
    """A map from names to scalars or arrays of them: the facts about a job or a state."""
    found: dict[str, Any] = {}
    for name, value in _read_map(raw, field).items():
        path = f"{field}.{name}"
        if memoryview(value)[0] in _ARRAYS:
            _header(memoryview(value), _ARRAYS, path, "array", MAX_MAP_ENTRIES)
            found[name] = tuple(_read_scalar(item, path) for item in _elements(value))
        else:
            found[name] = _read_scalar(value, path)
    return found


def _read_map(raw: Raw, field: str) -> dict[str, Raw]:
    expected = f"map from names of 1..{MAX_NAME} characters without duplicate keys"
    count, _ = _header(memoryview(raw), _MAPS, field, expected, MAX_MAP_ENTRIES)
    try:
        found: dict[str, Raw] = _names_and_values(raw)
    except FAULTS:
        raise malformed(field, expected) from None
    if len(found) < count or not all(1 <= len(name) <= MAX_NAME for name in found):
        raise malformed(field, expected)
    return found


def _read_scalar(raw: Raw, field: str) -> Detail:
    try:
        value: Detail = _scalar(raw)
    except FAULTS:
        raise malformed(field, "string, integer of 64 bits, finite float, boolean or nil") from None
    if type(value) is float and not math.isfinite(value):
        raise malformed(field, "finite float")
    return value


def _header(
    view: memoryview, of: frozenset[int], field: str, expected: str, most: int | None = None
) -> tuple[int, int]:
    """The number of elements of an array or a map, and where the first begins. `view` begins with a whole header."""
    first = view[0]
    if first not in of:
        raise malformed(field, expected)
    width = 0 if first < 0xA0 else 2 if first in (0xDC, 0xDE) else 4
    count = int.from_bytes(view[1 : 1 + width], "big") if width else first & 0x0F
    if most is not None and count > most:
        raise malformed(field, f"at most {most} elements")
    return count, 1 + width
