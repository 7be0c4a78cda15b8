"""The declared types of a state's values, and their plain data, which is stored in a schema.

Rules of this module: types in, plain data and text out. It must not know states, bytes or conversions. As plain data,
in the header of a checkpoint file, a type is one of

    "None" | "bool" | "int" | "float" | "str" | "bytes" | "date" | "datetime" | "timedelta" | "Decimal" | "UUID"
    "object"                                      anything: no declared type, or one that does not restrict values
    {"list": T}   {"dict": [K, V]}                T, K, V are types again
    {"tuple": [T, ...]}   {"tuple_of": T}         of exactly these items; of any number
    {"union": [T, ...]}                           one of them
    {"record": name, "fields": [{"name": name, "type": T, "default": bool}, ...]}      a dataclass or a named tuple
    {"enum": name, "members": [name, ...]}        an enum
    {"class": name}                               a class that only a serializer of the user's own can write
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from inspect import isabstract
from reprlib import repr as shown  # bounded: what is shown may come from anywhere
from typing import Annotated, Any, ForwardRef, Literal, NewType
from uuid import UUID

from qstate.errors import CheckpointError

__all__ = [
    "OBJECT",
    "ClassType",
    "DictType",
    "EnumType",
    "ListType",
    "RecordField",
    "RecordType",
    "ScalarType",
    "TupleOfType",
    "TupleType",
    "UnionType",
    "ValueType",
    "has_default",
    "type_from_plain",
    "value_type_of",
]

#: The deepest nesting of types. A declared type below counts as `object`; deeper plain data is not a type.
MAX_DEPTH = 32

_SCALARS: dict[str, type] = {
    "None": type(None),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "timedelta": timedelta,
    "Decimal": Decimal,
    "UUID": UUID,
    "object": object,
}
_NAME_OF = {kind: name for name, kind in _SCALARS.items()}
#: The meaning of names in annotations without their module: a program's main module is not shipped to the task
#: managers with its classes.
_USUAL_NAMES: dict[str, Any] = {**{name: getattr(typing, name) for name in typing.__all__}, **_SCALARS}


class ValueType(ABC):
    """A declared type. Its text is the type in Python's syntax."""

    @abstractmethod
    def to_plain(self) -> Any:
        """Plain data that MessagePack and JSON can hold."""


@dataclass(frozen=True, slots=True)
class ScalarType(ValueType):
    """A type without parts, by its name."""

    name: str

    @property
    def python_class(self) -> type:
        return _SCALARS[self.name]

    def to_plain(self) -> Any:
        return self.name

    def __str__(self) -> str:
        return self.name


OBJECT = ScalarType("object")


@dataclass(frozen=True, slots=True)
class ListType(ValueType):
    """A list of any length."""

    item: ValueType

    def to_plain(self) -> Any:
        return {"list": self.item.to_plain()}

    def __str__(self) -> str:
        return "list" if self.item == OBJECT else f"list[{self.item}]"


@dataclass(frozen=True, slots=True)
class DictType(ValueType):
    """A dict."""

    key: ValueType
    value: ValueType

    def to_plain(self) -> Any:
        return {"dict": [self.key.to_plain(), self.value.to_plain()]}

    def __str__(self) -> str:
        return "dict" if self.key == self.value == OBJECT else f"dict[{self.key}, {self.value}]"


@dataclass(frozen=True, slots=True)
class TupleType(ValueType):
    """A tuple of exactly these items."""

    items: tuple[ValueType, ...]

    def to_plain(self) -> Any:
        return {"tuple": [item.to_plain() for item in self.items]}

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}]"


@dataclass(frozen=True, slots=True)
class TupleOfType(ValueType):
    """A tuple of any length."""

    item: ValueType

    def to_plain(self) -> Any:
        return {"tuple_of": self.item.to_plain()}

    def __str__(self) -> str:
        return "tuple" if self.item == OBJECT else f"tuple[{self.item}, ...]"


@dataclass(frozen=True, slots=True)
class UnionType(ValueType):
    """One of several types, of which there are at least two, all different."""

    alternatives: tuple[ValueType, ...]

    def to_plain(self) -> Any:
        return {"union": [alternative.to_plain() for alternative in self.alternatives]}

    def __str__(self) -> str:
        return " | ".join(map(str, self.alternatives))


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record; `default` says whether it has one."""

    name: str
    type: ValueType
    default: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{' = ...' if self.default else ''}"


@dataclass(frozen=True, slots=True)
class RecordType(ValueType):
    """A dataclass or a named tuple. Its name is for people: a record may be renamed.

    `python_class` is None in a type that was made of plain data.
    """

    name: str
    fields: tuple[RecordField, ...]
    python_class: type | None = dataclasses.field(default=None, compare=False, repr=False)

    def to_plain(self) -> Any:
        found = [{"name": field.name, "type": field.type.to_plain(), "default": field.default} for field in self.fields]
        return {"record": self.name, "fields": found}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.fields))})"


@dataclass(frozen=True, slots=True)
class EnumType(ValueType):
    """An enum, with the names of its members. Its own name is for people. `python_class` as for a record."""

    name: str
    members: tuple[str, ...]
    python_class: type[Enum] | None = dataclasses.field(default=None, compare=False, repr=False)

    def to_plain(self) -> Any:
        return {"enum": self.name, "members": list(self.members)}

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ClassType(ValueType):
    """A class of which only the name is known (without its module: a class may move)."""

    name: str

    def to_plain(self) -> Any:
        return {"class": self.name}

    def __str__(self) -> str:
        return self.name


def value_type_of(declared: Any) -> ValueType:
    """The type of a declaration: a class, `list[int]`, `float | None` and so on.

    A declaration that does not determine the value's class (`Any`, a type variable, a protocol such as `Sequence`, an
    unknown name) is `object`, and so is a dataclass within itself.
    """
    return _type_of(declared, ())


def type_from_plain(plain: Any) -> ValueType:
    """The inverse of `to_plain`. Raises `CheckpointError` for anything else."""
    return _from_plain(plain, MAX_DEPTH)


def _type_of(declared: Any, within: tuple[Any, ...]) -> ValueType:
    if len(within) >= MAX_DEPTH or declared in within:
        return OBJECT
    if declared is None:
        return ScalarType("None")
    if isinstance(declared, ValueType):  # that of a stored schema
        return declared
    within = (*within, declared)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is not None:
        return _generic(origin, arguments, within)
    if isinstance(declared, NewType):
        return _type_of(declared.__supertype__, within)
    if not isinstance(declared, type):
        return OBJECT
    if declared in _NAME_OF:
        return ScalarType(_NAME_OF[declared])
    if declared in (list, tuple, dict):
        return _generic(declared, (), within)
    if typing.is_typeddict(declared):
        return DictType(ScalarType("str"), OBJECT)
    if issubclass(declared, Enum) and not issubclass(declared, Flag):  # a combination of flags has no name of its own
        return EnumType(declared.__name__, tuple(member.name for member in declared), declared)
    if is_dataclass(declared) or (issubclass(declared, tuple) and hasattr(declared, "_fields")):
        return _record(declared, within)
    # In `typing`: Any, which is a class since Python 3.11.
    says_nothing = isabstract(declared) or declared.__module__ in ("collections.abc", "numbers", "typing")
    return OBJECT if says_nothing or getattr(declared, "_is_protocol", False) else ClassType(declared.__name__)


def _generic(origin: Any, arguments: tuple[Any, ...], within: tuple[Any, ...]) -> ValueType:
    if origin is Literal:
        return _union(_type_of(type(argument), within) for argument in arguments)
    if origin is Annotated:
        return _type_of(arguments[0], within)
    if origin is typing.Union or origin is types.UnionType:
        return _union(_type_of(argument, within) for argument in arguments)
    # Python 3.10 gives the arguments of tuple[()] as ((),), newer ones as (), which is also that of a bare tuple.
    parts = [_type_of(argument, within) for argument in arguments if argument is not ... and argument != ()]
    if origin is list:
        return ListType(parts[0] if parts else OBJECT)
    if origin is dict:
        return DictType(*parts) if parts else DictType(OBJECT, OBJECT)
    if origin is tuple:
        return TupleOfType(parts[0] if parts else OBJECT) if ... in arguments or not parts else TupleType(tuple(parts))
    # Parameters of a user's own generic class are not followed.
    return _type_of(origin, within)


def _union(found: typing.Iterable[ValueType]) -> ValueType:
    flat: dict[ValueType, None] = {}
    for kind in found:
        flat.update(dict.fromkeys(kind.alternatives if isinstance(kind, UnionType) else (kind,)))
    if OBJECT in flat:
        return OBJECT
    return UnionType(tuple(flat)) if len(flat) > 1 else next(iter(flat))


def _record(record: Any, within: tuple[Any, ...]) -> ValueType:
    """The type of a dataclass or a named tuple."""
    if is_dataclass(record):
        parts = [(field.name, _annotation(record, field), has_default(field)) for field in fields(record)]
    else:
        owner = next(base for base in record.__mro__ if "_fields" in vars(base))
        types = vars(owner).get("__annotations__", {})
        defaults = record._field_defaults
        parts = [(name, _resolved(types.get(name, Any), owner), name in defaults) for name in record._fields]
    found = tuple(RecordField(name, _type_of(declared, within), default) for name, declared, default in parts)
    return RecordType(record.__name__, found, record)


def _annotation(record: Any, field: Field[Any]) -> Any:
    # The names are those of the module that first has the field: subclasses share its Field.
    owners = [base for base in record.__mro__ if vars(base).get("__dataclass_fields__", {}).get(field.name) is field]
    return _resolved(field.type, owners[-1])


def _resolved(annotation: Any, owner: type) -> Any:
    """The type of a field of a class; an annotation that is text and cannot be made out is `Any`."""
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    names = {**_USUAL_NAMES, **getattr(sys.modules.get(owner.__module__), "__dict__", {})}
    try:
        return eval(text, names, {owner.__name__: owner})
    except Exception:  # any code can stand in an annotation
        return Any


def _from_plain(plain: Any, depth: int) -> ValueType:
    if type(plain) is str and plain in _SCALARS:
        return ScalarType(plain)
    if depth and isinstance(plain, Mapping):
        match dict(plain):
            case {"list": item}:
                return ListType(_from_plain(item, depth - 1))
            case {"dict": [key, value]}:
                return DictType(_from_plain(key, depth - 1), _from_plain(value, depth - 1))
            case {"tuple": [*items]}:
                return TupleType(tuple(_from_plain(item, depth - 1) for item in items))
            case {"tuple_of": item}:
                return TupleOfType(_from_plain(item, depth - 1))
            case {"union": [_, _, *_] as items}:
                return _union(_from_plain(item, depth - 1) for item in items)
            case {"record": str(name), "fields": [*found]}:
                return RecordType(name, _fields_from_plain(found, depth - 1))
            case {"enum": str(name), "members": [*members]} if all(type(member) is str for member in members):
                return EnumType(name, tuple(members))
            case {"class": str(name)}:
                return ClassType(name)
    raise CheckpointError(
        f"a schema has the type {shown(plain)}, which is unknown here: it is damaged, or a newer qstate wrote it"
    )


def _fields_from_plain(plain: list[Any], depth: int) -> tuple[RecordField, ...]:
    found: dict[str, RecordField] = {}
    for field in plain:
        match field:
            case {"name": str(name), "type": kind, "default": bool(default)} if name not in found:
                found[name] = RecordField(name, _from_plain(kind, depth), default)
            case _:
                raise CheckpointError(
                    f"a schema has the field {shown(field)}, which has no name of its own, no type or no default: "
                    "it is damaged"
                )
    return tuple(found.values())


def has_default(field: Field[Any]) -> bool:
    """Whether a field of a dataclass has a default.

    A class that came by value, as cloudpickle sends those of a script or a notebook, has a `MISSING` of its own. So it
    is known by its class.
    """
    return not (isinstance(field.default, type(MISSING)) and isinstance(field.default_factory, type(MISSING)))
