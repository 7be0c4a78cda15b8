"""The forms of declared types that MessagePack lacks: how an object of such a type is stored, and read again.

Rules of this module: types and values in, values out; it knows no bytes and no states. A form is made once from a
declared type. Readers without the class read the stored form:

    declared                        stored as
    a dataclass, a named tuple      a dict of its fields
    an enum                         the name of the member
    a type that contains these      the same type, with the forms in their places
    any other type                  the value itself: it has no form
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from reprlib import repr as shown  # bounded: a value may be of any size and depth
from typing import Any, NamedTuple

from qstate.errors import ConfigError, SerializationError
from qstate.values.value_types import (
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

__all__ = ["Form", "form_of", "same", "with_fields"]

Step = Callable[[Any], Any]


class Form(NamedTuple):
    """`write` returns the stored form of a value, `read` the value of a stored form.

    Both raise `SerializationError` for another value. `read` returns a value that is no stored form but has the
    declared class unchanged, such as an object that a migration made.
    """

    write: Step
    read: Step


def form_of(declared: ValueType) -> Form | None:
    """The form of a type, None if its values are stored as they are.

    Raises `ConfigError` for a type that cannot be stored or read back: it names the field.
    """
    return _form(declared, "")


def _form(declared: ValueType, path: str) -> Form | None:
    match declared:
        case ScalarType():
            return None
        case ListType():
            return _each(list, _form(declared.item, _within(path, "[]")))
        case TupleOfType():
            return _each(tuple, _form(declared.item, _within(path, "[]")))
        case TupleType():
            return _by_position([_form(item, _within(path, f"[{at}]")) for at, item in enumerate(declared.items)])
        case DictType():
            _check_hashable(declared.key, path)
            return _each_entry(_form(declared.key, _within(path, "[]")), _form(declared.value, _within(path, "[]")))
        case UnionType():
            return _union(declared, [_form(kind, path) for kind in declared.alternatives], path)
        case RecordType():
            return _record(declared, path)
        case EnumType():
            return _enum(declared)
    raise ConfigError(f"{path or declared}: {declared} cannot be stored; {_remedy(declared)}")


def _within(path: str, part: str) -> str:
    return path and path + part


#: What to declare instead of a class that has no form, by the class's name.
_REMEDIES = {
    **dict.fromkeys(("bytearray", "memoryview"), "bytes"),
    **dict.fromkeys(("set", "frozenset", "deque"), "list"),
    **dict.fromkeys(("OrderedDict", "defaultdict", "Counter"), "dict"),
    **dict.fromkeys(("float16", "float32", "float64"), "float"),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "int"),
    **dict.fromkeys(("bool_", "bool"), "bool"),
    "ndarray": "list",
}


def _remedy(declared: ValueType) -> str:
    plain = _REMEDIES.get(str(declared))
    declare = f"declare {plain}" if plain else "declare a dataclass or plain types, such as int for a flag"
    return f"{declare}, or give the descriptor a serializer"


def _check_hashable(key: ValueType, path: str) -> None:
    kinds = key.alternatives if isinstance(key, UnionType) else key.items if isinstance(key, TupleType) else (key,)
    for kind in kinds:
        if isinstance(kind, UnionType | TupleType):
            _check_hashable(kind, path)
        elif isinstance(kind, RecordType):
            raise ConfigError(
                f"{path or kind.name}: the key of a dict cannot be a {kind.name}, which is stored as a dict; "
                "declare a tuple"
            )


def _each(container: type, item: Form | None) -> Form | None:
    if item is None:
        return None
    write, read = item
    check = _exactly(container)
    return Form(
        lambda value: container(map(write, check(value))),
        lambda found: container(map(read, check(found))),
    )


def _by_position(items: list[Form | None]) -> Form | None:
    if not any(items):
        return None
    check = _exactly(tuple)

    def through(steps: list[Step]) -> Step:
        def convert(value: Any) -> Any:
            if len(check(value)) != len(steps):
                raise SerializationError(f"expected a tuple of {len(steps)}, got {shown(value)}")
            return tuple(step(part) for step, part in zip(steps, value, strict=True))

        return convert

    return Form(
        through([item.write if item else same for item in items]),
        through([item.read if item else same for item in items]),
    )


def _each_entry(key: Form | None, value: Form | None) -> Form | None:
    if key is None and value is None:
        return None
    check = _exactly(dict)

    def through(of_key: Step, of_value: Step) -> Step:
        return lambda entries: {of_key(name): of_value(entry) for name, entry in check(entries).items()}

    return Form(
        through(key.write if key else same, value.write if value else same),
        through(key.read if key else same, value.read if value else same),
    )


def _union(declared: UnionType, forms: list[Form | None], path: str) -> Form | None:
    """A union's value is read by the class of its stored form, so two alternatives must not share one."""
    if not any(forms):
        return None
    write: dict[type, Step] = {}
    read: dict[type, Step] = {}
    for kind, form in zip(declared.alternatives, forms, strict=True):
        own, stored = _class_of(kind), _stored_class(kind)
        if stored in read:
            raise ConfigError(
                f"{path or declared}: the alternatives of {declared} cannot be told apart when they are read back: "
                f"two of them are stored as {stored.__name__}; declare one, or give the descriptor a serializer"
            )
        write[own], read[stored] = (form.write, form.read) if form else (same, same)
    return Form(
        lambda value: write.get(type(value), same)(value),
        lambda found: read.get(type(found), same)(found),
    )


def _class_of(kind: ValueType) -> type:
    if isinstance(kind, RecordType | EnumType):
        assert kind.python_class is not None  # a declared type has its class
        return kind.python_class
    return _stored_class(kind)


def _stored_class(kind: ValueType) -> type:
    match kind:
        case ScalarType():
            return kind.python_class
        case ListType():
            return list
        case TupleType() | TupleOfType():
            return tuple
        case EnumType():
            return str
    return dict


def _record(declared: RecordType, path: str) -> Form:
    record: Any = declared.python_class
    path = path or declared.name
    _check_makeable(record, path)
    names = tuple(field.name for field in declared.fields)
    required = {field.name for field in declared.fields if not field.default}
    found = {field.name: _form(field.type, f"{path}.{field.name}") for field in declared.fields}
    forms = {name: form for name, form in found.items() if form is not None}

    def write(value: Any) -> dict[str, Any]:
        if type(value) is not record:
            raise SerializationError(f"expected a {record.__name__}, got {shown(value)}")
        stored = {name: getattr(value, name) for name in names}
        for name, form in forms.items():
            stored[name] = form.write(stored[name])
        return stored

    def read(stored: Any) -> Any:
        if type(stored) is not dict or not required <= stored.keys():
            if type(stored) is record:
                return stored
            raise SerializationError(f"the bytes are not a {record.__name__}: got {shown(stored)}")
        parts = {name: stored[name] for name in names if name in stored}
        for name in forms.keys() & parts.keys():
            parts[name] = forms[name].read(parts[name])
        return record(**parts)

    return Form(write, read)


def with_fields(record: Any, changed: dict[str, Any]) -> Any:
    """A new record with other values of these fields."""
    if is_dataclass(record) and not isinstance(record, type):
        return replace(record, **changed)
    return record._replace(**changed)


def _check_makeable(record: Any, path: str) -> None:
    """Raise `ConfigError` unless an object can be made of its fields, as one of a named tuple always can."""
    made_of = fields(record) if is_dataclass(record) else ()
    if any(not field.init for field in made_of):
        raise ConfigError(f"{path}: {record.__name__} has fields outside __init__, so it cannot be read back")
    try:
        if made_of:
            signature(record).bind(**{field.name: None for field in made_of})
    except TypeError as exc:
        raise ConfigError(
            f"{path}: {record.__name__} cannot be made of its fields, so it cannot be read back: {exc}"
        ) from None


def _enum(declared: EnumType) -> Form:
    members: Any = declared.python_class

    def write(value: Any) -> str:
        if type(value) is not members:
            raise SerializationError(f"expected a {members.__name__}, got {shown(value)}")
        name: str = value.name
        return name

    def read(stored: Any) -> Any:
        if type(stored) is members:
            return stored
        try:
            return members[stored]
        except (KeyError, TypeError):
            raise SerializationError(f"the enum {members.__name__} has no member {shown(stored)}") from None

    return Form(write, read)


def _exactly(container: type) -> Step:
    def check(value: Any) -> Any:
        if type(value) is not container:
            raise SerializationError(f"expected a {container.__name__}, got {shown(value)}")
        return value

    return check


def same(value: Any) -> Any:
    """The step that changes nothing."""
    return value
