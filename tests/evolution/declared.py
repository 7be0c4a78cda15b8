"""Declared types and values of them for Hypothesis, and what they mean: an oracle that shares nothing with the code."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from qstate.descriptors import ValueStateDescriptor
from qstate.evolution import Converted, StateSchema, plan_evolution

__all__ = [
    "annotations",
    "conforms",
    "equal_as_numbers",
    "ints_in",
    "no_float_is",
    "scalar_annotations",
    "taken_over",
    "values_of",
    "widened",
]

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1) | st.integers(-9, 9),
    float: st.floats(),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    bytes: st.binary(max_size=5),
    date: st.dates(),
    datetime: st.datetimes().map(lambda found: found.replace(fold=0)),  # which ISO 8601 has no form for
    timedelta: st.timedeltas(),
    Decimal: st.decimals(allow_nan=False),
    UUID: st.uuids(),
}
scalar_annotations: st.SearchStrategy[Any] = st.sampled_from(list(_SCALARS))
_key_annotations = st.sampled_from([str, int, bytes])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda item: list[item]),
        st.tuples(_key_annotations, inner).map(lambda pair: dict[pair]),  # type: ignore[misc]
        inner.map(lambda item: tuple[item, ...]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        st.tuples(inner, inner).map(lambda pair: typing.Union[pair]),  # noqa: UP007
    )


#: Types such as `dict[str, int | list[float]]`, without `object` and without dataclasses.
annotations: st.SearchStrategy[Any] = st.recursive(scalar_annotations, _containers, max_leaves=5)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of exactly that type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is object:
        return annotations.flatmap(values_of)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is tuple and arguments[1] is ...:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if _is_union(origin):
        return st.one_of(*map(values_of, arguments))
    return _SCALARS[annotation]


@st.composite
def widened(draw: st.DrawFn, annotation: Any) -> Any:
    """A type that takes every value of another, its ints as floats perhaps: the same, or wider here and there."""
    how = draw(st.sampled_from(["same", "object", "optional", "parts", "parts", "parts"]))
    if how == "object":
        return object
    if how == "optional":
        return typing.Union[draw(widened(annotation)), draw(scalar_annotations)]  # noqa: UP007
    if how == "parts":
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation is int:
            return float
        if origin is list:
            return list[draw(widened(arguments[0]))]  # type: ignore[misc]
        if origin is dict:
            return dict[arguments[0], draw(widened(arguments[1]))]  # type: ignore[misc,valid-type]
        if origin is tuple and arguments[1] is ...:
            return tuple[draw(widened(arguments[0])), ...]  # type: ignore[misc]
        if origin is tuple:
            return tuple[tuple(draw(widened(argument)) for argument in arguments)]  # type: ignore[misc]
        if _is_union(origin):
            return typing.Union[tuple(draw(widened(argument)) for argument in arguments)]  # noqa: UP007
    return annotation


def conforms(value: Any, annotation: Any, *, loosely: bool = False) -> bool:
    """Whether a value is of a type; `loosely`: an int is a float, too, if there is a float of that value."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is object:
        return True
    if _is_union(origin):
        return any(conforms(value, argument, loosely=loosely) for argument in arguments)
    if annotation is float and loosely and type(value) is int:
        return not no_float_is(value)
    if origin is None:
        return type(value) is annotation
    if type(value) is not origin:
        return False
    if origin is dict:
        return all(
            conforms(part, kind, loosely=loosely)
            for kind, parts in zip(arguments, (value, value.values()), strict=True)
            for part in parts
        )
    if origin is tuple and arguments[1] is not ...:
        return len(value) == len(arguments) and all(
            conforms(part, kind, loosely=loosely) for part, kind in zip(value, arguments, strict=True)
        )
    return all(conforms(part, arguments[0], loosely=loosely) for part in value)


def no_float_is(value: int) -> bool:
    return int(float(value)) != value


def ints_in(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from ints_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from ints_in(part)


def equal_as_numbers(one: Any, other: Any) -> bool:
    """Equal, and of equal types but for ints that became floats; NaN equals NaN."""
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal_as_numbers, one, other))
    if isinstance(one, dict):
        return type(other) is dict and equal_as_numbers(list(one.items()), list(other.items()))
    if type(one) is int and type(other) is float:
        return one == other
    return type(one) is type(other) and (one == other or one != one)


def taken_over(stored: Any, wanted: Any, value: Any) -> tuple[Any, bool]:
    """What a value that was stored under one declared type reads as under another, and whether it was rewritten.

    Raises what the decision and the conversion raise.
    """
    before, after = ValueStateDescriptor("s", stored), ValueStateDescriptor("s", wanted)
    data = before.serializer.dumps(value)
    plan = plan_evolution(StateSchema.of(before), after)
    if isinstance(plan, Converted):
        return after.serializer.loads(plan.convert(data)), True
    return after.serializer.loads(data), False


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType
