"""Checks that a value has the type that its state declares, and can be read back unchanged.

Rules of this module: values in, `Misfit` out or nothing; no bytes, no states. A rule is made once from a declared type;
a value of a declared class then costs one look-up in a set. Classes must match exactly, because that is how values are
read back:

    declared          admits
    a scalar          values of exactly that class: float admits no int, int no bool, and neither admits NumPy's
    T | U             the values of T and of U
    list, dict, tuple exactly these classes, with items of the declared type
    a record          objects of the dataclass or named tuple, if each field has its declared type
    an enum           its members
    another class     objects of a class of that name, or derived from one
    object            anything. With the serializer `msgpack`: any plain value

A plain value is one that MessagePack reads back with equal parts of equal classes: None, bool, int, float, str, bytes,
date, timedelta, Decimal, UUID, a datetime in UTC or without a time zone, and lists, dicts and tuples of these, nested
at most `DEEPEST` deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from reprlib import repr as shown  # bounded: what is shown may be of any size and depth
from typing import Any, NamedTuple
from uuid import UUID

from qstate.errors import SerializationError
from qstate.values.value_types import (
    ClassType,
    DictType,
    EnumType,
    ListType,
    RecordType,
    ScalarType,
    TupleOfType,
    TupleType,
    UnionType,
    ValueType,
)

__all__ = ["PLAIN", "Misfit", "Rule", "rule_of"]

#: The deepest nesting of lists, dicts and tuples in a plain value, and of tuples in tuples.
DEEPEST, DEEPEST_TUPLES = 128, 32

_PLAIN_SCALARS: frozenset[type] = frozenset((type(None), bool, int, float, str, bytes, date, timedelta, Decimal, UUID))
_PLAIN_TEXT = (
    "a plain value (None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal, UUID, "
    "or lists, dicts, tuples)"
)
_are_scalars = _PLAIN_SCALARS.issuperset


class Misfit(SerializationError):
    """A value does not have its declared type. `path` is the path to the wrong part."""

    def __init__(self, expected: str, value: Any, advice: str = "") -> None:
        super().__init__(expected, value, advice)
        self.expected, self.value, self.advice, self.path = expected, value, advice, ""

    def __str__(self) -> str:
        where = f"at {self.path}: " if self.path else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{where}expected {self.expected}, got {shown(self.value)} of type {type(self.value).__name__}{advice}"


class Rule(NamedTuple):
    """The admitted values: all of exactly the classes in `exact`; for others `check` raises `Misfit` or admits them."""

    exact: frozenset[type]
    check: Callable[[Any], None]


def rule_of(declared: ValueType, anything: Rule | None) -> Rule | None:
    """The rule of a declared type, None if it admits everything; `anything` is the rule of `object`."""
    match declared:
        case ScalarType("object"):
            return anything
        case ScalarType("datetime") if anything is PLAIN:
            return Rule(frozenset(), _check_moment)
        case ScalarType():
            return Rule(frozenset((declared.python_class,)), _refusal(str(declared)))
        case ListType():
            return _container(list, str(declared), rule_of(declared.item, anything))
        case TupleOfType():
            return _container(tuple, str(declared), rule_of(declared.item, anything))
        case TupleType():
            return _fixed_tuple(str(declared), [rule_of(item, anything) for item in declared.items])
        case DictType():
            return _dict(str(declared), rule_of(declared.key, anything), rule_of(declared.value, anything))
        case UnionType():
            return _union(str(declared), [rule_of(kind, anything) for kind in declared.alternatives])
        case RecordType():
            return _record(declared, {field.name: rule_of(field.type, anything) for field in declared.fields})
        case EnumType():
            assert declared.python_class is not None  # a declared type has its class
            return Rule(frozenset((declared.python_class,)), _refusal(declared.name))
        case ClassType():
            return _named(declared.name, anything)
    raise AssertionError(declared)


def _part(place: Any, rule: Rule | None, part: Any) -> None:
    if rule is not None and type(part) not in rule.exact:
        try:
            rule.check(part)
        except Misfit as exc:
            exc.path = f"[{place!r}]{exc.path}"
            raise


def _parts(parts: Iterable[Any], places: Iterable[Any], rule: Rule | None) -> None:
    for place, part in zip(places, parts, strict=True):
        _part(place, rule, part)


def _all_of(rule: Rule | None) -> Callable[[Iterable[type]], bool]:
    """The function that says whether parts of these classes need no check: most values have only such parts."""
    return rule.exact.issuperset if rule is not None else lambda kinds: True


def _refusal(expected: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        raise Misfit(expected, value, _advice(expected, value))

    return check


def _container(container: type[list[Any]] | type[tuple[Any, ...]], expected: str, item: Rule | None) -> Rule:
    are_items = _all_of(item)

    def check(value: Any) -> None:
        if type(value) is not container:
            raise Misfit(expected, value, _advice(container.__name__, value))
        if not are_items(map(type, value)):
            _parts(value, range(len(value)), item)

    return Rule(frozenset(() if item else (container,)), check)


def _fixed_tuple(expected: str, items: list[Rule | None]) -> Rule:
    def check(value: Any) -> None:
        if type(value) is not tuple or len(value) != len(items):
            raise Misfit(expected, value, _advice("tuple", value))
        for place, (rule, part) in enumerate(zip(items, value, strict=True)):
            _part(place, rule, part)

    return Rule(frozenset(), check)


def _dict(expected: str, key: Rule | None, item: Rule | None) -> Rule:
    are_keys, are_items = _all_of(key), _all_of(item)

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise Misfit(expected, value, _advice("dict", value))
        if not are_keys(map(type, value)):
            _parts(value, value, key)
        if not are_items(map(type, value.values())):
            _parts(value.values(), value, item)

    return Rule(frozenset(() if key or item else (dict,)), check)


def _misfit(rule: Rule, value: Any) -> Misfit | None:
    try:
        if type(value) not in rule.exact:
            rule.check(value)
    except Misfit as exc:
        return exc
    return None


def _union(expected: str, alternatives: list[Rule | None]) -> Rule | None:
    rules = [rule for rule in alternatives if rule is not None]
    if len(rules) < len(alternatives):
        return None

    def check(value: Any) -> None:
        within = []
        for rule in rules:
            if (misfit := _misfit(rule, value)) is None:
                return
            if misfit.path:
                within.append(misfit)
        if len(within) == 1:  # it is of that alternative but for a part, which is what its author looks for
            raise within[0]
        raise Misfit(expected, value, _advice(expected, value))

    return Rule(frozenset().union(*(rule.exact for rule in rules)), check)


def _record(declared: RecordType, fields: dict[str, Rule | None]) -> Rule:
    of_class = _named(declared.name, None).check
    # Fast path: each field has the one class that is declared. The getter returns a tuple only for two or more fields.
    classes = [next(iter(rule.exact), None) if rule is not None else None for rule in fields.values()]
    get = attrgetter(*fields) if len(fields) > 1 else None

    def check(value: Any) -> None:
        if type(value) is dict:
            raise Misfit(declared.name, value, f"give {declared.name}(**value)")
        of_class(value)
        if get is not None and list(map(type, get(value))) == classes:
            return
        for name, rule in fields.items():
            _part(name, rule, getattr(value, name))

    def check_kept(value: Any) -> None:
        check(value)
        _check_kept(value, declared, list(fields))

    return Rule(frozenset(), check_kept if hasattr(declared.python_class, "__post_init__") else check)


def _check_kept(value: Any, declared: RecordType, fields: Sequence[str]) -> None:
    """Check that the dataclass, whose `__post_init__` has any code, accepts the fields and leaves them as they are."""
    given = {name: getattr(value, name) for name in fields}
    assert declared.python_class is not None
    try:
        read_back = declared.python_class(**given)
    except Exception as exc:
        raise Misfit(
            f"fields that {declared.name} accepts when it is made of them", value, f"{type(exc).__name__}: {exc}"[:200]
        ) from exc
    for name, part in given.items():
        found = getattr(read_back, name)
        if found is not part and (type(found) is not type(part) or found != part):
            misfit = Misfit(f"{shown(found)}, which __post_init__ makes of it", part, "give what it leaves as it is")
            misfit.path = f"[{name!r}]"
            raise misfit


def _named(name: str, anything: Rule | None) -> Rule:
    def check(value: Any) -> None:
        if type(value).__name__ != name and all(base.__name__ != name for base in type(value).__mro__):
            raise Misfit(name, value, _advice(name, value))
        if anything is not None:
            anything.check(value)

    return Rule(frozenset(), check)


def _check_plain(value: Any) -> None:
    kind = type(value)
    if kind is dict:  # fast path: scalars only, without a check of each part
        if _are_scalars(map(type, value.values())) and _are_scalars(map(type, value)):
            return
    elif (kind is list or kind is tuple) and _are_scalars(map(type, value)):
        return
    _check_nested(value, DEEPEST, DEEPEST_TUPLES)


def _check_nested(value: Any, levels: int, tuples: int) -> None:
    kind = type(value)
    if kind in _PLAIN_SCALARS:
        return
    if kind is datetime:
        _check_moment(value)
    elif not (levels and tuples):
        raise Misfit(f"values nested {DEEPEST} deep at most, tuples {DEEPEST_TUPLES}", value)
    elif kind is list:
        _nested_parts(value, range(len(value)), levels - 1, tuples)
    elif kind is dict:
        _nested_parts(value, value, levels - 1, tuples)
        _nested_parts(value.values(), value, levels - 1, tuples)
    elif kind is tuple:
        _nested_parts(value, range(len(value)), levels - 1, tuples - 1)
    else:
        raise Misfit(_PLAIN_TEXT, value, _advice("", value))


def _nested_parts(parts: Iterable[Any], places: Iterable[Any], levels: int, tuples: int) -> None:
    if not _are_scalars(map(type, parts)):
        for place, part in zip(places, parts, strict=True):
            try:
                _check_nested(part, levels, tuples)
            except Misfit as exc:
                exc.path = f"[{place!r}]{exc.path}"
                raise


#: The rule of `object` with the serializer `msgpack`.
PLAIN = Rule(_PLAIN_SCALARS, _check_plain)


def _check_moment(value: Any) -> None:
    if type(value) is not datetime:
        raise Misfit("datetime", value, _advice("datetime", value))
    if value.tzinfo is not None and value.tzinfo is not timezone.utc:
        advice = "give value.astimezone(timezone.utc), the form in which a moment is stored"
        raise Misfit("a datetime in UTC, or without a time zone", value, advice)


def _advice(expected: str, value: Any) -> str:
    """Advice on how to convert a value to one that can be stored."""
    if isinstance(value, bytearray | memoryview):
        return "give bytes(value)"
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, and similar classes
        return "give value.tolist()"
    if isinstance(value, Enum):
        return "give value.value, or declare its class"
    if isinstance(value, set | frozenset):
        return "give list(value)"
    if expected == "float" and type(value) is int:
        return "give float(value), or declare int | float"
    if expected == "int" and type(value) is bool:
        return "give int(value), or declare bool"
    for base in (str, int, float, bytes, list, dict, tuple):
        if hasattr(value, "_fields"):
            return "give tuple(value), or declare its class"
        if isinstance(value, base) and type(value) is not base and type(value) is not bool:
            return f"give {base.__name__}(value)"
    if is_dataclass(value):
        return "declare its class, or give dataclasses.asdict(value)"
    if type(value) is datetime or type(value) in _PLAIN_SCALARS or type(value) in (list, dict, tuple):
        return "write what is declared, or declare what is written"
    return "give a plain value, or give the descriptor a serializer"
