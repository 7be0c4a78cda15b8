"""Converts stored changes to the schemas of the program that restores the state.

Rules of this module: changes in, changes out, one at a time; it applies the plans of `qstate.evolution` and decides
nothing. It knows which bytes of a change are values; it must not know where the changes come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Change, ChangeOp
from qstate.descriptors import StateKind
from qstate.errors import JobError
from qstate.evolution import Converted, Evolution
from qstate.keys import decode_key

__all__ = ["converted", "not_converted"]

_WITHOUT_VALUE = frozenset((ChangeOp.DELETE, ChangeOp.MAP_REMOVE))


def converted(changes: Iterable[Change], plans: Mapping[str, Evolution]) -> Iterator[Change]:
    """The changes, with the values of each state converted by its plan. A state without a plan keeps its changes.

    Raises `JobError` for the first value that cannot be converted, naming the state and the key. It changes nothing
    that is stored. So the caller may stop at any change, and the old program can still use its state.
    """
    for change in changes:
        plan = plans.get(change.state)
        if isinstance(plan, Converted) and change.op not in _WITHOUT_VALUE:
            yield change._replace(data=_data(change, plan))
        else:
            yield change


def _data(change: Change, plan: Converted) -> bytes:
    try:
        if plan.kind is StateKind.LIST:
            return pack_elements(map(plan.convert, unpack_elements(change.data)))
        return plan.convert(change.data)
    except Exception as exc:  # the user's migration or serializer may raise anything
        raise not_converted(f"state {change.state!r}, {_place(change)}: the stored value", exc) from exc


def not_converted(what: str, cause: Exception) -> JobError:
    """The error for stored data that the user's migration or serializer cannot convert; `what` names it."""
    return JobError(
        f"{what} cannot be converted: {type(cause).__name__}: {cause}. No state was changed and no row was processed; "
        "mend the descriptor's type or migration, or run the program that stored the state"
    )


def _place(change: Change) -> str:
    found = f"key {decode_key(change.key)!r}"
    if change.op is ChangeOp.MAP_PUT:
        found += f", map key {decode_key(change.map_key)!r}"
    namespace = decode_key(change.namespace)
    return found if namespace is None else f"{found}, namespace {namespace!r}"
