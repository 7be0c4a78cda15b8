"""Calls for many keys at once: what the `..._many` methods of handles and of timers share.

Rules of this module: it knows tables, keys and namespaces; it must not know batches, nor which kind of state it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import compress
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qstate.backends.contract import StateTable
from qstate.errors import JobError
from qstate.keys import ColumnType, Key, Namespace, all_of_class, check_key, key_class, key_identity
from qstate.operators.columns.column_values import column_values
from qstate.operators.no_key import NO_KEY
from qstate.operators.user_traceback import described

__all__ = [
    "Cursor",
    "Namespaces",
    "Part",
    "Tables",
    "Values",
    "check_many",
    "fold",
    "gathered",
    "listed",
    "parts",
    "put_or_delete",
]

#: A function from a namespace to the table that holds one state's entries in it.
Tables = Callable[[Namespace], StateTable]
#: Values of many keys: any sequence, an Arrow array (which mypy does not know) or a NumPy array.
Values = Sequence[Any] | npt.NDArray[Any]
#: The namespace of each of many keys. None: all are in the namespace of the object that is called.
Namespaces = Sequence[Namespace] | None


class Cursor(Protocol):
    """The key of a call: the current one, and the types that keys have."""

    current_key: Any
    key_types: Sequence[ColumnType] | None


class Part(NamedTuple):
    """The keys of one namespace among those of a call, with what was given for each."""

    table: StateTable
    #: The places of these keys among all keys of the call.
    places: Sequence[int]
    keys: Sequence[Key]
    given: Sequence[Sequence[Any]]


def check_many(call: str, cursor: Cursor, keys: Sequence[Key], columns: Iterable[Sized]) -> None:
    """Raise `JobError` where there is a current key, or when a column is not as long as the keys.

    Raises `WrongKeyType` for a key that has not the types of the stream's keys. `call` is the name of the method in
    errors.
    """
    current_key = cursor.current_key
    if current_key is not NO_KEY:
        hash(current_key)  # raises `JobError` where there is none
        raise JobError(
            f"{call} takes the keys of a whole batch, but there is a current key, {current_key!r}: use the methods "
            "without _many"
        )
    for column in columns:
        if len(column) != len(keys):
            raise JobError(
                f"{call} got {len(keys)} keys, and {len(column)} values, map keys, times or namespaces for them"
            )
    of_one_class = key_class(cursor.key_types)
    if len(keys) and (of_one_class is None or not all_of_class(keys, of_one_class)):
        for key in keys:
            check_key(key, cursor.key_types)


def listed(values: Values, read: Callable[[pa.Array], list[Any]] = column_values) -> Sequence[Any]:
    """The values as plain Python objects. `read` is the function for Arrow arrays."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        return [value for chunk in chunks for value in read(chunk)]
    found: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    return found


def parts(tables: Tables, namespace: Namespace, namespaces: Namespaces, *columns: Sequence[Any]) -> Iterator[Part]:
    """The parts of a call by namespace. The first of the columns has the keys; all are as long as it.

    `namespaces` has the namespace of each key; if it is None, all are in `namespace`.
    """
    if namespaces is None:
        yield Part(tables(namespace), range(len(columns[0])), columns[0], columns[1:])
        return
    places: dict[Any, tuple[Namespace, list[int]]] = {}
    for place, one in enumerate(namespaces):
        places.setdefault(key_identity(one), (one, []))[1].append(place)
    for one, own in places.values():
        keys, *given = ([column[place] for place in own] for column in columns)
        yield Part(tables(one), own, keys, given)


def gathered(found: Iterator[tuple[Part, Sequence[Any]]], count: int) -> list[Any]:
    """What was read for each part, in the order of the call's keys."""
    values: list[Any] = [None] * count
    for part, own in found:
        if len(own) == count:
            return list(own)
        for place, value in zip(part.places, own, strict=True):
            values[place] = value
    return values


def put_or_delete(table: StateTable, keys: Sequence[Key], values: Sequence[Any]) -> None:
    """`put_many`, where a None deletes. Of equal keys the last one counts."""
    if None not in values:
        table.put_many(keys, values)
        return
    latest = dict(zip(keys, values, strict=True))
    kept = {key: value for key, value in latest.items() if value is not None}
    table.put_many(list(kept), list(kept.values()))
    for key in compress(latest, (value is None for value in latest.values())):
        table.delete(key)


def fold(part: Part, state: str, what: str, combine: Callable[[Any, Any], Any]) -> None:
    """Combine the values of each key, in their order, into its stored value: `combine(stored value or None, value)`.

    One read and one write per key, but still a fold from the left: the stored value comes first, so the function need
    not be associative. `what` is the function's name in errors. After a failure, no value of the part is written.
    """
    keys = list(dict.fromkeys(part.keys))
    folded = dict(zip(keys, part.table.get_many(keys), strict=True))
    key: Any = None
    try:
        for key, value in zip(part.keys, part.given[0], strict=True):
            folded[key] = combine(folded[key], value)
    except Exception as exc:
        raise JobError(f"state {state!r}, key {key!r}: {what} failed: {described(exc)}") from exc
    for key, value in folded.items():
        if value is None:
            raise JobError(f"state {state!r}, key {key!r}: {what} returned None")
    part.table.put_many(keys, list(folded.values()))
