"""Converts values when the declared type of their state changes.

Rules of this module: values in, values out, by the types of a schema; no bytes, no states. The two types alone decide
the conversion, before there is a value. It changes only the parts whose type changed. An older qstate did not check
values, so a field that is declared as float may hold an int; it keeps the int until the field's type changes.

    stored             wanted             conversion
    T                  T, T | ..., object   none: the value also has the wanted type
    int                float                each int becomes the equal float; one that no float equals is refused
    object             T                    each value is checked; a T stays unchanged (an int becomes a float)
    dict               a record             as object: each value is checked
    a record           dict[str, T]         field by field: a record is stored as a dict
    an enum            str                  none: an enum is stored as the name of its member
    an enum, str       an enum              none if it has all members; otherwise each name is checked
    a class            a type of that name  none: the class is known in more detail than before
    a record           a record             field by field; added ones need a default, dropped ones are removed
    containers         of the same kind     item by item
    T | U              V                    T and U must both be able to become V
    anything else                           refused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qstate.evolution.value_checks import Misfit
from qstate.values.value_forms import same, with_fields
from qstate.values.value_types import (
    OBJECT,
    ClassType,
    DictType,
    EnumType,
    ListType,
    RecordField,
    RecordType,
    ScalarType,
    TupleOfType,
    TupleType,
    UnionType,
    ValueType,
)

__all__ = ["Conversion", "Refusal", "admission_to", "conversion_between"]

#: Returns the value in the wanted type, the same object if nothing changed. Raises `Misfit`.
Conversion = Callable[[Any], Any]


class Refusal(Exception):
    """One type cannot become the other; the text says why, from the inside out."""


def conversion_between(stored: ValueType, wanted: ValueType) -> Conversion | None:
    """The conversion from one type to another, None if the values need no change. Raises `Refusal`."""
    if wanted in (stored, OBJECT):
        return None
    if stored == OBJECT:
        return admission_to(wanted)
    if isinstance(stored, UnionType):
        return _from_union(stored, wanted)
    if isinstance(wanted, UnionType):
        return _to_union(stored, wanted)
    match stored, wanted:
        case ScalarType("int"), ScalarType("float"):
            return _to_float
        case ListType(), ListType():
            return _each(list, conversion_between(stored.item, wanted.item))
        case TupleOfType(), TupleOfType():
            return _each(tuple, conversion_between(stored.item, wanted.item))
        case TupleType(), TupleOfType():
            return _by_position([conversion_between(item, wanted.item) for item in stored.items])
        case TupleType(), TupleType() if len(stored.items) == len(wanted.items):
            return _by_position(list(map(conversion_between, stored.items, wanted.items)))
        case DictType(), DictType():
            key, value = conversion_between(stored.key, wanted.key), conversion_between(stored.value, wanted.value)
            return _each_entry(key, value)
        case DictType(value=ScalarType("object")), RecordType():
            return admission_to(wanted)
        case RecordType(), DictType(ScalarType("str" | "object")):
            steps = {field.name: conversion_between(field.type, wanted.value) for field in stored.fields}
            return _by_field(steps) if any(steps.values()) else None
        case RecordType(), RecordType():
            return _fields_between(stored, wanted)
        case EnumType(), EnumType() if set(stored.members) <= set(wanted.members):
            return None
        case ((EnumType() | ScalarType("str")), EnumType()):
            return admission_to(wanted)
        case EnumType(), ScalarType("str"):
            return None
        case ClassType(), (RecordType() | EnumType() | ScalarType()) if stored.name == wanted.name:
            return None
    raise Refusal(f"{stored} cannot become {wanted}")


def admission_to(wanted: ValueType, *, widen: bool = True) -> Conversion:
    """The conversion that admits values of a type, whatever their declared type; with `widen`, ints become floats."""
    match wanted:
        case ScalarType("object"):
            return same
        case ScalarType("float") if widen:
            return _to_float
        case ScalarType():
            return _exactly(wanted.python_class, str(wanted))
        case ListType():
            return _checked(_exactly(list, str(wanted)), _each(list, _part(wanted.item, widen)))
        case TupleOfType():
            return _checked(_exactly(tuple, str(wanted)), _each(tuple, _part(wanted.item, widen)))
        case TupleType():
            parts = [_part(item, widen) for item in wanted.items]
            return _checked(_tuple_of_length(len(parts), str(wanted)), _by_position(parts))
        case DictType():
            parts = [_part(wanted.key, widen), _part(wanted.value, widen)]
            return _checked(_exactly(dict, str(wanted)), _each_entry(*parts))
        case UnionType():
            # An alternative that keeps the value unchanged has priority over one that would change it.
            loose = [admission_to(alternative) for alternative in wanted.alternatives] if widen else []
            return _first_of([admission_to(kind, widen=False) for kind in wanted.alternatives] + loose, str(wanted))
        case RecordType():
            required = tuple(field.name for field in wanted.fields if not field.default)
            steps = {field.name: _part(field.type, widen) for field in wanted.fields}
            return _checked(_record_check(wanted.name, required), _by_field(steps))
        case EnumType():
            return _member_check(wanted)
        case ClassType():
            return _named(wanted.name)
    raise AssertionError(wanted)


def _from_union(stored: UnionType, wanted: ValueType) -> Conversion | None:
    found = [(kind, conversion_between(kind, wanted)) for kind in stored.alternatives]
    if all(conversion is None for _, conversion in found):
        return None
    cases = [_checked(admission_to(kind, widen=False), conversion) for kind, conversion in found]
    # Last, for values that were never declared and still have the wanted type.
    return _first_of([*cases, admission_to(wanted)], str(wanted))


def _to_union(stored: ValueType, wanted: UnionType) -> Conversion | None:
    found: list[Conversion] = []
    for alternative in wanted.alternatives:
        try:
            conversion = conversion_between(stored, alternative)
        except Refusal:
            continue
        if conversion is None:
            return None
        found.append(conversion)
    if not found:
        raise Refusal(f"{stored} cannot become any of {wanted}")
    return _first_of(found, str(wanted))


def _fields_between(stored: RecordType, wanted: RecordType) -> Conversion | None:
    old = {field.name: field for field in stored.fields}
    new = {field.name: field for field in wanted.fields}
    for name, field in new.items():
        if name not in old and not field.default:
            raise Refusal(f"{wanted.name} has a new field {name!r} without a default")
    steps = {name: _field_between(old[name], field) if name in old else None for name, field in new.items()}
    # Added or removed fields change no value that the job reads, but they change the stored bytes. They are rewritten,
    # so that a query gets the same answer from every backend, whether or not the job has written the key since.
    if old.keys() == new.keys() and not any(steps.values()):
        return None
    return _by_field(steps)


def _field_between(stored: RecordField, wanted: RecordField) -> Conversion | None:
    try:
        return conversion_between(stored.type, wanted.type)
    except Refusal as exc:
        raise Refusal(f"field {wanted.name!r}: {exc}") from None


def _part(wanted: ValueType, widen: bool) -> Conversion | None:
    return None if wanted == OBJECT else admission_to(wanted, widen=widen)


def _to_float(value: Any) -> Any:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise Misfit("float", value)
    try:
        found = float(value)
    except OverflowError:
        found = None
    if found != value:
        raise Misfit("an int that a float can hold exactly", value)
    return found


def _admitting(fits: Callable[[Any], bool], expected: str) -> Conversion:
    """The conversion that changes no value and refuses those that do not fit."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise Misfit(expected, value)
        return value

    return check


def _exactly(kind: type, expected: str) -> Conversion:
    # Not isinstance: True is no int here, and the default serializer refuses subclasses.
    return _admitting(lambda value: type(value) is kind, expected)


def _tuple_of_length(length: int, expected: str) -> Conversion:
    return _admitting(lambda value: type(value) is tuple and len(value) == length, expected)


def _named(name: str) -> Conversion:
    return _admitting(lambda value: any(base.__name__ == name for base in type(value).__mro__), name)


def _record_check(name: str, required: tuple[str, ...]) -> Conversion:
    def check(value: Any) -> Any:
        if type(value) is not dict:  # an object of the class: a serializer of the user's own may return one
            return _named(name)(value)
        missing = [field for field in required if field not in value]
        if missing:
            raise Misfit(f"{name} with {', '.join(map(repr, missing))}", value)
        return value

    return check


def _member_check(wanted: EnumType) -> Conversion:
    members = frozenset(wanted.members)

    def check(value: Any) -> Any:
        # The name of a member; or the member, which a serializer of the user's own or a migration may give.
        name = value if type(value) is str else _named(wanted.name)(value).name
        if name not in members:
            raise Misfit(f"a {wanted.name}: {', '.join(wanted.members)}", value)
        return value

    return check


def _checked(check: Conversion, rest: Conversion | None) -> Conversion:
    return check if rest is None else lambda value: rest(check(value))


def _first_of(conversions: list[Conversion], expected: str) -> Conversion:
    def convert(value: Any) -> Any:
        for conversion in conversions:
            try:
                return conversion(value)
            except Misfit:
                continue
        raise Misfit(expected, value)

    return convert


def _each(container: type, step: Conversion | None) -> Conversion | None:
    if step is None:
        return None
    return lambda value: container(_at(index, step, item) for index, item in enumerate(_sized(container, value)))


def _by_position(steps: list[Conversion | None]) -> Conversion | None:
    if not any(steps):
        return None
    check = _tuple_of_length(len(steps), f"tuple of {len(steps)}")
    return lambda value: tuple(
        item if step is None else _at(index, step, item)
        for index, (step, item) in enumerate(zip(steps, check(value), strict=True))
    )


def _each_entry(key_step: Conversion | None, value_step: Conversion | None) -> Conversion | None:
    if key_step is None and value_step is None:
        return None
    new_key, new_value = key_step or same, value_step or same
    return lambda value: {
        _at(key, new_key, key): _at(key, new_value, entry) for key, entry in _sized(dict, value).items()
    }


def _by_field(steps: Mapping[str, Conversion | None]) -> Conversion:
    def convert(value: Any) -> Any:
        if type(value) is dict:
            return {
                name: value[name] if step is None else _at(name, step, value[name])
                for name, step in steps.items()
                if name in value
            }
        changed = {name: _at(name, step, getattr(value, name)) for name, step in steps.items() if step is not None}
        return with_fields(value, changed)

    return convert


def _sized(container: type, value: Any) -> Any:
    return _exactly(container, container.__name__)(value)


def _at(place: Any, step: Conversion, part: Any) -> Any:
    try:
        return step(part)
    except Misfit as exc:
        exc.path = f"[{place!r}]{exc.path}"
        raise
