"""The checks that every backend makes on values and map keys before it stores them, in the operator's thread.

Rules of this module: it refuses values that no backend could return unchanged, at the cost of a type test or two.
None is the absence of a value, so it cannot be one. In a map it can: the map keys say which entries there are. Map keys
are those of `qstate.keys`, without booleans and decimals: the keys of one map may have different types, and in Python
True and Decimal("1.0") equal 1.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from reprlib import repr as shown  # bounded: a key may be of any size
from typing import Any

from qstate.descriptors import StateDescriptor, TimerDescriptor
from qstate.errors import JobError, SerializationError, WrongKeyType
from qstate.keys import Key, Namespace, check_key, key_identity

__all__ = [
    "admit_descriptor",
    "admit_list",
    "admit_map",
    "admit_map_key",
    "admit_pairs",
    "admit_time",
    "admit_timers",
    "admit_values",
    "none_refused",
    "refused_write",
]

_INT64 = 1 << 63
_NONE = type(None)


def admit_descriptor(descriptor: StateDescriptor, *, held: StateDescriptor) -> None:
    """Raise `JobError` when a state's name is used again with another kind (rule B2 of the contract).

    Also for a descriptor that says how values expire, which is the caller's matter: see `qstate.backends.expiry`.
    """
    if descriptor.ttl is not None:
        raise JobError(
            f"state {descriptor.name!r} has a time-to-live, of which backends know nothing: give the backend "
            "qstate.backends.expiry.stored_form(descriptor)"
        )
    if descriptor.kind is not held.kind or type(held) is TimerDescriptor is not type(descriptor):
        raise JobError(
            f"state {descriptor.name!r} is a {held.kind.value} state and cannot be a {descriptor.kind.value} state, "
            "too; give one of the two another name"
        )


def admit_timers(descriptor: TimerDescriptor, states: Container[str]) -> None:
    """Raise `JobError` when timers have the name of one of these states."""
    if descriptor.name in states:
        raise JobError(f"{descriptor.name!r} is a state and cannot be the name of timers, too; give them another name")


def admit_map_key(key: Any) -> None:
    """Raise `SerializationError` unless `key` can be a map key. For text the caller need not call: any text can."""
    kind = type(key)
    if kind is str or kind is bytes or (kind is int and -_INT64 <= key < _INT64):
        return
    try:
        check_key(key)
        if key_identity(key) is not key:
            raise WrongKeyType(expected="no boolean and no decimal", got=kind.__name__)
    except WrongKeyType as exc:
        raise SerializationError(
            "a map key is text, bytes, an integer of 64 bits, a date, a datetime with a time zone or a tuple of them, "
            f"got {key!r} of {kind.__name__}"
        ) from exc


def admit_values(values: Iterable[Any]) -> None:
    """Raise `SerializationError` when one of the values is None."""
    # By type, because `None in values` would call the values' own `__eq__`.
    if _NONE in map(type, values):
        raise none_refused()


def admit_pairs(keys: Sequence[Key], values: Sequence[Any]) -> None:
    """Refuse what `put_many` cannot write: a None among the values, or not one value for each key."""
    admit_values(values)
    if len(keys) != len(values):
        raise ValueError(f"put_many got {len(keys)} keys for {len(values)} values")


def admit_time(time: Any) -> None:
    """Raise `SerializationError` unless a timer can have this time."""
    if type(time) is not int or not -_INT64 <= time < _INT64:
        raise SerializationError(f"the time of a timer is an integer of 64 bits, got {time!r}")


def admit_list(value: Any) -> list[Any]:
    """The list to store: the same object when it is a list."""
    elements: list[Any] = value if type(value) is list else list(value)
    admit_values(elements)
    return elements


def admit_map(value: Any) -> dict[Any, Any]:
    """The dict to store: the same object when it is a dict."""
    if not isinstance(value, Mapping):
        raise SerializationError(f"the value of a map state is a mapping, got {type(value).__name__}")
    entries: dict[Any, Any] = value if type(value) is dict else dict(value)
    for key in entries:
        if type(key) is not str:
            admit_map_key(key)
    return entries


def none_refused() -> SerializationError:
    return SerializationError("None is not a value (nor an element): clear() instead")


def refused_write(
    state: str, namespace: Namespace, key: Any, exc: Exception, map_key: Key | None = None
) -> SerializationError:
    """The error for an entry that cannot be written; the message names the entry."""
    places = [("key", key), ("namespace", namespace), ("map key", map_key)]
    where = "".join(f", {what} {shown(place)}" for what, place in places if place is not None)
    return SerializationError(f"state {state!r}{where}: {exc}")
