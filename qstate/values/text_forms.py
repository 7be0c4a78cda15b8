"""Keys, namespaces and values as text and as JSON types, for people and for languages without their types.

Rules of this module: pure functions. What they read is checked, and a `ConfigError` says the form that was expected;
what they write for a key or a namespace, they read again.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from qstate.errors import ConfigError
from qstate.keys import Column, ColumnType, Key, Namespace, check_column, check_key

__all__ = [
    "StateTypes",
    "column_types",
    "key_form",
    "key_of",
    "map_key_form",
    "namespace_form",
    "namespace_of",
    "parse_columns",
    "parse_key",
    "parse_namespace",
    "printable",
]

_FRACTION = re.compile(r"(?<=:\d\d)\.\d{1,6}(?!\d)")
#: The types of a map's keys, by their names in a state's description.
_MAP_KEYS = {
    "str": ColumnType.STRING,
    "int": ColumnType.BIGINT,
    "bytes": ColumnType.BINARY,
    "bool": ColumnType.BOOLEAN,
    "date": ColumnType.DATE,
    "datetime": ColumnType.TIMESTAMP,
}
_COLUMN_TYPES = frozenset(kind.value for kind in ColumnType)
#: The largest whole number that every reader of JSON takes exactly.
LARGEST_NUMBER = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class StateTypes:
    """The types of a state's keys and, where they are known, of its namespaces and of the keys of its maps."""

    keys: list[ColumnType]
    namespaces: list[ColumnType] | None = None
    map_keys: list[ColumnType] | None = None

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> StateTypes:
        """Those of a state's description. Raises `ConfigError` for keys of a newer version's types."""
        spaces = description.get("namespace_types") or ()
        known = all(name in _COLUMN_TYPES for name in spaces)
        map_key = _MAP_KEYS.get(str(description.get("map_key_type")))
        return cls(
            column_types(description["key_types"]),
            column_types(spaces) if spaces and known else None,
            None if map_key is None else [map_key],
        )


def column_types(names: Sequence[str]) -> list[ColumnType]:
    """The types of key columns, from a state's description. Raises `ConfigError` for types of a newer version."""
    try:
        return [ColumnType(name) for name in names]
    except ValueError:
        known = ", ".join(kind.value for kind in _FORMS)
        raise ConfigError(
            f"the state's key types are {', '.join(names)}, this version of qstate knows {known} and decimals: "
            "use a newer version"
        ) from None


def parse_key(texts: Sequence[str], types: Sequence[ColumnType]) -> Key:
    """Parse a key from one text for each column. Raises `ConfigError` when a text does not fit its column's type."""
    if len(texts) != len(types):
        raise ConfigError(f"the key has {len(types)} columns ({_names(types)}), got {len(texts)}")
    columns = parse_columns(texts, types)
    key = columns[0] if len(columns) == 1 else columns
    check_key(key)
    return key


def parse_columns(texts: Sequence[str], types: Sequence[ColumnType]) -> tuple[Column, ...]:
    """Parse the first columns of a key. Raises `ConfigError` when a text does not fit its column's type."""
    if len(texts) > len(types):
        raise ConfigError(f"the key has {len(types)} columns ({_names(types)}), got {len(texts)}")
    return tuple(_parse_column(text, kind) for text, kind in zip(texts, types, strict=False))


def key_of(value: Any, types: Sequence[ColumnType]) -> Key:
    """The key that `key_form` wrote: a JSON value for one column, a list for several. Raises `ConfigError`."""
    columns = value if isinstance(value, list) else [value]
    return parse_key([_column_text(column, types, at) for at, column in enumerate(columns)], types)


def _column_text(column: Any, types: Sequence[ColumnType], at: int) -> str:
    if isinstance(column, str):
        return column
    kind = types[at] if at < len(types) else None
    if isinstance(column, bool):
        if kind is ColumnType.BOOLEAN:
            return "true" if column else "false"
    elif isinstance(column, int) and kind is not ColumnType.STRING and abs(column) < 1 << 64:
        return str(column)
    if kind is None:
        return str(column)  # one too many, which `parse_key` refuses
    form = _form_of(kind) if kind in (ColumnType.BIGINT, ColumnType.STRING) else f"text: {_form_of(kind)}"
    raise ConfigError(f"the key column {at + 1} is of type {kind.value}: write it as {form}, not {column!r:.80}")


def key_form(key: Key) -> Any:
    """A key as JSON types: a list for several columns, binary in hexadecimal, large whole numbers as text."""
    return [_column_form(column) for column in key] if isinstance(key, tuple) else _column_form(key)


def _column_form(column: Column) -> Any:
    if isinstance(column, bytes):
        return column.hex()
    if isinstance(column, int) and abs(column) > LARGEST_NUMBER:
        return str(column)
    return printable(column)


def namespace_form(namespace: Namespace) -> Any:
    """A namespace as JSON types, with a tag for what JSON lacks: `parse_namespace` reads it."""
    if isinstance(namespace, tuple):
        return [namespace_form(column) for column in namespace]
    if isinstance(namespace, bytes):
        return {"binary": namespace.hex()}
    if isinstance(namespace, date):
        return {"timestamp" if isinstance(namespace, datetime) else "date": namespace.isoformat()}
    return {"decimal": str(namespace)} if isinstance(namespace, Decimal) else namespace


def map_key_form(key: Any) -> Any:
    """A key of a map as JSON types: in the form of a namespace, and with its class as a tag where that has none."""
    if isinstance(key, tuple):
        return [map_key_form(column) for column in key]
    if isinstance(key, float):
        return key if math.isfinite(key) else {"float": printable(key)}
    if key is None or isinstance(key, bool | int | str | bytes | date | Decimal):
        return namespace_form(key)
    return {type(key).__name__: str(key)}


def _parse_column(text: str, kind: ColumnType, of: str = "key") -> Column:
    parse = _FORMS[kind][0] if kind in _FORMS else _parse_decimal(kind)
    # Python's numbers may have digits of other scripts, and underscores.
    if kind is ColumnType.STRING or (text.isascii() and "_" not in text):
        try:
            column: Column = parse(text)
            if check_column(column) is kind:
                return column
        except (ValueError, KeyError, ArithmeticError):
            pass
    raise ConfigError(f"the {of} column is of type {kind.value}: write it as {_form_of(kind)}, not {text!r:.80}")


def _form_of(kind: ColumnType) -> str:
    return _FORMS[kind][1] if kind in _FORMS else f"a number of type {kind.value}"


def _parse_moment(text: str) -> datetime:
    # Python 3.10 reads neither Z nor a fraction of other than three or six digits.
    text = _FRACTION.sub(lambda found: found[0].ljust(7, "0"), text.replace("Z", "+00:00"), count=1)
    return datetime.fromisoformat(text)


def _parse_decimal(kind: ColumnType) -> Callable[[str], Decimal]:
    def parse(text: str) -> Decimal:
        found = Decimal(text)
        return next((one for one in _with_decimals(found) if check_column(one) is kind), found)

    return parse


def _with_decimals(number: Decimal) -> Iterator[Decimal]:
    """The number with each possible number of decimals: 1.5 is the key 1.50 of a column with two decimals."""
    sign, digits, exponent = number.as_tuple()
    for more in range(39):
        if isinstance(exponent, int) and -38 <= exponent - more <= 0 and len(digits) + more <= 38:
            yield Decimal((sign, (*digits, *[0] * more), exponent - more))


#: How a column of a type is read from text, and how its form is called.
_FORMS: dict[ColumnType, tuple[Callable[[str], Any], str]] = {
    ColumnType.STRING: (str, "text"),
    ColumnType.BIGINT: (int, "a whole number"),
    ColumnType.BINARY: (bytes.fromhex, "hexadecimal digits"),
    ColumnType.BOOLEAN: ({"true": True, "false": False}.__getitem__, "true or false"),
    ColumnType.DATE: (date.fromisoformat, "a date such as 2020-12-31"),
    ColumnType.TIMESTAMP: (_parse_moment, "a moment with its time zone, such as 2020-12-31T23:59:59+00:00"),
}
#: The names of values in a namespace that JSON lacks.
_TAGS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": _parse_moment,
    "decimal": Decimal,
    "binary": bytes.fromhex,
}


def parse_namespace(text: str | None, types: Sequence[ColumnType] | None = None, of: str = "namespace") -> Namespace:
    """Parse a namespace: JSON (a number, text, a list for several columns, null); any other text is itself.

    `{"date": ...}`, `{"timestamp": ...}`, `{"decimal": ...}` and `{"binary": HEX}` stand for what JSON lacks.

    With the `types` of the state's namespaces, a column may be text for every type, as in a key. Where a namespace is
    text, everything but `null` and text in quotes is the namespace itself: 123 is the text 123. The key of a map has
    the same forms; `of` is what errors call it.
    """
    if text is None:
        return None
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=Decimal if types else float)
    except (ValueError, RecursionError):
        value = text
    if types and list(types) == [ColumnType.STRING] and not isinstance(value, str | None):
        value = text
    return namespace_of(value, types, of)


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN is no JSON


def namespace_of(value: Any, types: Sequence[ColumnType] | None = None, of: str = "namespace") -> Namespace:
    """The namespace that `namespace_form` wrote. Raises `ConfigError` and `WrongKeyType`.

    With the `types` of the state's namespaces, text is accepted for every type.
    """
    if value is None:
        return None
    columns = [_untagged(column, of) for column in (value if isinstance(value, list) else [value])]
    if types:
        if len(columns) != len(types):
            raise ConfigError(f"the {of} has {len(types)} columns ({_names(types)}), got {len(columns)}")
        columns = [_as_type(column, kind, of) for column, kind in zip(columns, types, strict=True)]
    namespace: Namespace = tuple(columns) if isinstance(value, list) else columns[0]
    check_key(namespace, types or None)
    return namespace


def _as_type(column: Any, kind: ColumnType, of: str) -> Any:
    if isinstance(column, str) or (kind.is_decimal and type(column) in (int, Decimal)):
        return _parse_column(str(column), kind, of)
    return column


def _untagged(value: Any, of: str) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((tag, text),) = value.items()
    try:
        return _TAGS[tag](text)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        tags = ", ".join(f'{{"{known}": ...}}' for known in _TAGS)
        raise ConfigError(f"a {of} cannot be {value!r:.80}: it may contain text, numbers and {tags}") from None


def printable(value: Any) -> Any:
    """The value as JSON types: bytes in base 64, dates in ISO 8601, NaN, infinities and other types as text.

    A map whose keys are all text is an object. Any other map is a list of pairs, `[map_key_form(key), value]`: so keys
    such as 1 and "1" are two.
    """
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: printable(entry) for key, entry in value.items()}
        return [[map_key_form(key), printable(entry)] for key, entry in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [printable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


def _names(types: Sequence[ColumnType]) -> str:
    return ", ".join(kind.value for kind in types)
