"""The timers of a model and of a backend, in the order in which they are due.

Rules of this module: the order is that of the contract (Q2), computed with the suite's own MessagePack. In a model, the
timers of a key are a dict from time to True.
"""

from __future__ import annotations

from collections.abc import Iterable

from qstate.backends import StateBackend, Timer, TimerQueue
from qstate.descriptors import TimerDescriptor
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import TIMERS, TWIN_TIMERS
from qstate_conformance.packing import pack

__all__ = ["EVER", "check_first_timers", "check_timers", "in_order", "take_from_model", "taken", "timers_of"]

#: The last time that a timer can have.
EVER = 2**63 - 1


def in_order(timers: Iterable[Timer]) -> list[Timer]:
    """The timers as a queue gives them, each once."""
    places = {(time, pack(space), pack(key)): Timer(time, space, key) for time, space, key in timers}
    return [places[place] for place in sorted(places)]


def timers_of(model: Model, descriptor: TimerDescriptor = TIMERS) -> list[Timer]:
    """The timers that the model holds, in order."""
    return in_order(
        Timer(time, namespace, key)
        for (name, namespace, key), held in model.entries.items()
        if name == descriptor.name
        for time in held
    )


def take_from_model(model: Model, upto: int, limit: int, descriptor: TimerDescriptor = TIMERS) -> list[Timer]:
    """What `take` must do to the model, and return."""
    due = [timer for timer in timers_of(model, descriptor) if timer.time <= upto][:limit]
    for time, namespace, key in due:
        model.map_remove((descriptor.name, namespace, key), time)
    return due


def taken(queue: TimerQueue, at_once: int = 1000) -> list[Timer]:
    """All timers, taken a few at a time."""
    found: list[Timer] = []
    while part := queue.take(EVER, at_once):
        assert len(part) <= at_once, f"{len(part)} timers, {at_once} were asked for"
        found += part
    return found


def check_timers(backend: StateBackend, model: Model, epoch: int) -> None:
    """The queues give the model's timers, in order, in an epoch that is then undone."""
    backend.begin(epoch)
    for descriptor in (TIMERS, TWIN_TIMERS):
        found = taken(backend.timers(descriptor), 3)
        check_same(found, timers_of(model, descriptor), descriptor.name)
    backend.rollback()


def check_first_timers(backend: StateBackend, model: Model) -> None:
    """The queues know the time of the model's earliest timers."""
    for descriptor in (TIMERS, TWIN_TIMERS):
        first = next((timer.time for timer in timers_of(model, descriptor)), None)
        found = backend.timers(descriptor).first()
        check_same(found, first, f"the time of the earliest of the {descriptor.name}")
