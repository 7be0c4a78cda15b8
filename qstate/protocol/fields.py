"""The rules of single message fields: types, ranges and sizes.

Rules of this module: it checks values, and knows neither messages nor MessagePack. A check returns None or raises the
`QueryError` whose code and details a server would answer (`MalformedRequest`, `TooLarge`, `UnsupportedQuery`,
`WrongKeyType`). Types are compared exactly (`type(x) is int`): a bool is no integer here.

A message may have hundreds of keys, results and epochs. So built-ins that loop in C check the common types, and only
the others are checked one by one.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

from qstate.errors import Detail, FailureCode, MalformedRequest, TooLarge, UnsupportedQuery, WrongKeyType
from qstate.keys import MAX_KEY_COLUMNS, check_key
from qstate.protocol.limits import (
    MAX_ID,
    MAX_MAP_ENTRIES,
    MAX_NAME,
    STATE_ID_BYTES,
)

__all__ = [
    "INTEGER_OPTIONS",
    "OPTIONS",
    "check_array",
    "check_code",
    "check_description",
    "check_epochs",
    "check_integer",
    "check_keys",
    "check_map",
    "check_name",
    "check_names",
    "check_namespace",
    "check_options",
    "check_request_id",
    "check_results",
    "check_scalar",
    "check_scalars",
    "check_target",
    "malformed",
]

#: The options of a Get with a fixed set of values. Without the option the first value holds.
OPTIONS: dict[str, tuple[str, ...]] = {"isolation": ("live", "committed")}
#: The options that demand something of the answer: integers from 0. Without the option nothing is demanded.
INTEGER_OPTIONS = frozenset({"max_staleness_ms", "min_epoch"})

_MAX_INT64 = (1 << 63) - 1
_SCALARS = {str, int, float, bool, type(None)}
_STRINGS = {str}
_INTEGERS = {int}
_BINARIES = {bytes}
_ARRAYS = {tuple}
_COLUMNS = {str, bytes, int}
_SEQUENCES = (tuple, list)
#: The types of results without a failure: a value, or "not found".
_PLAIN_RESULTS = {bytes, type(None)}
_CODES = {int, FailureCode}
_RESULTS = _PLAIN_RESULTS | _CODES
#: The largest failure code. A newer peer may use codes that this version does not know.
_MAX_CODE = 65_535


def malformed(field: str, expected: str, **details: Detail) -> MalformedRequest:
    return MalformedRequest(field=field, expected=expected, **details)


def check_integer(value: Any, field: str, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise malformed(field, f"integer {low}..{high}")


def check_code(value: Any) -> None:
    """A failure code, known or not: a newer peer may know more."""
    check_integer(int(value) if type(value) is FailureCode else value, "code", 1, _MAX_CODE)


def check_request_id(value: Any) -> None:
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise malformed("id", f"integer 1..{MAX_ID}")


def check_name(value: Any, field: str, low: int = 1) -> None:
    if type(value) is not str or not low <= len(value) <= MAX_NAME:
        raise malformed(field, f"string of {low}..{MAX_NAME} characters")


def check_array(value: Any, field: str, low: int, high: int) -> None:
    # Decoding gives only tuples. Messages to encode may hold lists, because MessagePack has one array type.
    if type(value) not in _SEQUENCES or len(value) < low:
        raise malformed(field, f"array of {low}..{high}")
    if len(value) > high:
        raise TooLarge(field=field, limit=high)


def check_target(value: Any) -> None:
    """A state id at a state server, `(job, state)` at a proxy."""
    if type(value) is bytes:
        if len(value) != STATE_ID_BYTES:
            raise malformed("target", f"binary of {STATE_ID_BYTES} bytes")
    elif type(value) is tuple and len(value) == 2:
        check_name(value[0], "target.job")
        check_name(value[1], "target.state")
    else:
        raise malformed("target", "state id or [job, state]")


def check_namespace(value: Any) -> None:
    if value is not None:
        _check_key(value, "namespace", None)


def check_keys(keys: Any, max_keys: int) -> None:
    """One to `max_keys` keys. The error names the index of the first invalid one."""
    check_array(keys, "keys", 1, max_keys)
    kinds = set(map(type, keys))
    # MessagePack integers reach from -2**63 to 2**64 - 1, those of a bigint only to 2**63 - 1.
    if kinds in (_STRINGS, _BINARIES) or (kinds == _INTEGERS and max(keys) <= _MAX_INT64):
        return
    if kinds == _ARRAYS and _are_sound(keys):
        return
    for index, key in enumerate(keys):
        _check_key(key, "keys", index)


def _are_sound(keys: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether all keys of several columns are valid."""
    if min(map(len, keys)) < 2 or max(map(len, keys)) > MAX_KEY_COLUMNS:
        return False
    columns = list(chain.from_iterable(keys))
    if not set(map(type, columns)) <= _COLUMNS:
        return False
    return max((column for column in columns if type(column) is int), default=0) <= _MAX_INT64


def _check_key(key: Any, field: str, index: int | None) -> None:
    try:
        check_key(key)
    except WrongKeyType as exc:
        # Leave out the type found: its name would be Python's, and the client may be in another language.
        where: dict[str, Detail] = {"field": field} if index is None else {"field": field, "index": index}
        raise WrongKeyType(**where, expected=exc.details["expected"]) from None


def check_options(options: Any) -> None:
    """Known options with known values. A server must not ignore an option that it does not know."""
    if not options and type(options) is dict:
        return
    check_scalars(options, "options")
    for name, value in options.items():
        if name in INTEGER_OPTIONS:
            check_integer(value, f"options.{name}", 0, _MAX_INT64)
            continue
        if name not in OPTIONS:
            raise UnsupportedQuery(option=name)
        if value not in OPTIONS[name]:
            raise UnsupportedQuery(option=name, expected=", ".join(OPTIONS[name]))


def check_scalars(value: Any, field: str) -> None:
    """A map from names to strings, integers of 64 bits, finite floats, booleans and nil."""
    check_map(value, field)
    for name, scalar in value.items():
        check_scalar(scalar, f"{field}.{name}")


def check_scalar(value: Any, field: str) -> None:
    kind = type(value)
    if kind not in _SCALARS or (kind is float and not math.isfinite(value)):
        raise malformed(field, "string, integer, finite float, boolean or nil")
    if kind is int and not -_MAX_INT64 - 1 <= value <= _MAX_INT64:
        raise malformed(field, "integer of 64 bits")


def check_description(value: Any, field: str) -> None:
    """A map from names to scalars or arrays of them: the facts about a job or a state."""
    check_map(value, field)
    for name, found in value.items():
        for item in found if type(found) in _SEQUENCES else (found,):
            check_scalar(item, f"{field}.{name}")


def check_map(value: Any, field: str) -> None:
    if type(value) is not dict:
        raise malformed(field, "map without duplicate keys")
    if len(value) > MAX_MAP_ENTRIES:
        raise TooLarge(field=field, limit=MAX_MAP_ENTRIES)
    for name in value:
        if type(name) is not str or not 1 <= len(name) <= MAX_NAME:
            raise malformed(field, f"map with names of 1..{MAX_NAME} characters")


def check_epochs(epochs: Any, count: int) -> None:
    if type(epochs) not in _SEQUENCES or len(epochs) != count:
        raise malformed("epochs", f"array of {count}, one for each result")
    # Most answers have one epoch, so the set to compare is small.
    if set(map(type, epochs)) != _INTEGERS or min(distinct := set(epochs)) < -1 or max(distinct) > _MAX_INT64:
        raise malformed("epochs", "integers from -1")


def check_results(results: Any, epochs: Any, max_keys: int) -> None:
    """A value, nil or failure code for each key, with its epoch. A failure has epoch -1."""
    check_array(results, "results", 1, max_keys)
    check_epochs(epochs, len(results))
    kinds = set(map(type, results))
    if kinds <= _PLAIN_RESULTS:
        return
    if not kinds <= _RESULTS:
        raise malformed("results", "binary, nil or failure code")
    for result, epoch in zip(results, epochs, strict=True):
        if type(result) in _CODES and (not 0 < result <= _MAX_CODE or epoch != -1):
            raise malformed("results", f"failure code 1..{_MAX_CODE} with epoch -1")


def check_names(value: Any, field: str, high: int) -> None:
    check_array(value, field, 0, high)
    for name in value:
        check_name(name, field)
