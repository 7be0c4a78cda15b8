"""What a written value is stored as, where it has the declared type in another form.

Rules of this module: values in, values out; no bytes, no states. Handles use it before they write a value, so a
function reads the same value in the same epoch, in later ones and from every backend. The cost of a write depends on
the declaration and not on the size of the value: it looks at the value itself and at the fields of records and of
tuples of a fixed length, and not at the items of lists, dicts and other tuples, which must have the declared type.

    written                                 declared            stored
    a NumPy scalar                          its Python class    the Python value: np.float64(1.5) as 1.5
    a datetime with another time zone       datetime            the same moment in UTC
    any other value                         any type            unchanged; `value_checks` may refuse it later
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from qstate.values.value_forms import same, with_fields
from qstate.values.value_types import RecordType, ScalarType, TupleType, UnionType, ValueType, value_type_of

__all__ = ["Admission", "admission_of"]

#: The classes of most values for which there is nothing to do.
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


class Admission(NamedTuple):
    """Values of the classes in `unchanged` are stored as they are; for others, `admit` returns what is stored."""

    unchanged: frozenset[type]
    admit: Callable[[Any], Any]


_ANYTHING = Admission(_PLAIN, same)


def admission_of(value_type: Any) -> Admission:
    """The admission of a declared type. Each namespace has a handle, so it is made once for a type."""
    try:
        return _admission_of(value_type)
    except TypeError:  # an annotation may be unhashable
        return _admission(value_type_of(value_type)) or _ANYTHING


@lru_cache(maxsize=256)
def _admission_of(value_type: Any) -> Admission:
    return _admission(value_type_of(value_type)) or _ANYTHING


def _admission(declared: ValueType) -> Admission | None:
    match declared:
        case ScalarType("object"):
            return None
        case ScalarType():
            return _scalars(frozenset((declared.python_class,)))
        case TupleType():
            return _tuple([_admission(item) for item in declared.items])
        case RecordType():
            return _record(declared)
        case UnionType():
            return _union(declared)
    return None


def _scalars(classes: frozenset[type]) -> Admission:
    has_moments = datetime in classes

    def admit(value: Any) -> Any:
        kind: Any = type(value)
        if _is_numpy_scalar(kind):
            found = value.item()
            value = found if type(found) in classes else value
        if has_moments and type(value) is datetime and value.tzinfo is not None:
            return _in_utc(value)
        return value

    return Admission(classes - {datetime}, admit)


@lru_cache(maxsize=256)
def _is_numpy_scalar(kind: type) -> bool:
    """Known by its base class, because NumPy need not be installed."""
    return any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__)


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(timezone.utc)
    except Exception:  # out of range in UTC, or an error in the time zone's own code
        return value


def _record(declared: RecordType) -> Admission | None:
    record = declared.python_class
    found = {field.name: _admission(field.type) for field in declared.fields}
    parts = [(name, *admission) for name, admission in found.items() if admission is not None]
    if not parts:
        return None

    def admit(value: Any) -> Any:
        if type(value) is not record:
            return value
        changed = {}
        for name, unchanged, admit_part in parts:
            part = getattr(value, name)
            if type(part) not in unchanged:
                admitted = admit_part(part)
                if admitted is not part:
                    changed[name] = admitted
        if not changed:
            return value
        return with_fields(value, changed)

    return Admission(frozenset(), admit)


def _tuple(items: list[Admission | None]) -> Admission | None:
    if not any(items):
        return None
    parts = [item or _ANYTHING for item in items]

    def admit(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(parts):
            return value
        return tuple(
            part if type(part) in unchanged else admit_part(part)
            for part, (unchanged, admit_part) in zip(value, parts, strict=True)
        )

    return Admission(frozenset(), admit)


def _union(declared: UnionType) -> Admission | None:
    scalars = frozenset(kind.python_class for kind in declared.alternatives if isinstance(kind, ScalarType))
    steps = [_scalars(scalars)] if scalars else []
    others = [_admission(kind) for kind in declared.alternatives if not isinstance(kind, ScalarType)]
    steps += [step for step in others if step is not None]
    if not steps:
        return None

    def admit(value: Any) -> Any:
        for step in steps:
            value = step.admit(value)
        return value

    return Admission(steps[0].unchanged if scalars else frozenset(), admit)
