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

__all__ = ["converted", "not_converted", "without_emptied"]

_WITHOUT_VALUE = frozenset((ChangeOp.DELETE, ChangeOp.MAP_REMOVE))
#: What is left of a change whose values have all expired: it still replaces what came before. For LIST_ADD nothing is.
_EMPTIED = {ChangeOp.PUT: ChangeOp.DELETE, ChangeOp.MAP_PUT: ChangeOp.MAP_REMOVE}


def converted(changes: Iterable[Change], plans: Mapping[str, Evolution]) -> Iterator[Change]:
    """The changes, with the values of each state converted by its plan. A state without a plan keeps its changes.

    A change whose values have all expired becomes a DELETE or MAP_REMOVE; a LIST_ADD is left out.

    Raises `JobError` for the first value that cannot be converted, naming the state and the key. It changes nothing
    that is stored. So the caller may stop at any change, and the old program can still use its state.
    """
    for change in changes:
        plan = plans.get(change.state)
        if isinstance(plan, Converted) and change.op not in _WITHOUT_VALUE:
            data = _data(change, plan)
            if data is not None:
                yield change._replace(data=data)
            elif change.op in _EMPTIED:
                yield change._replace(op=_EMPTIED[change.op], data=b"")
        else:
            yield change


def without_emptied(changes: Iterable[Change]) -> Iterator[Change]:
    """The converted changes of a whole snapshot, which has values only."""
    return (change for change in changes if change.op not in _WITHOUT_VALUE)


def _data(change: Change, plan: Converted) -> bytes | None:
    """The converted data, None when all of its values have expired."""
    try:
        if plan.kind is StateKind.LIST:
            stored = unpack_elements(change.data)
            elements = [data for data in stored if not plan.expired(data)]
            return pack_elements(map(plan.convert, elements)) if elements or not stored else None
        return None if plan.expired(change.data) else plan.convert(change.data)
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
