"""Errands that may be asked elsewhere: at the job first, at its fallbacks when the job does not answer.

Rules of this module: it carries out what `fallback` decides. Each leg of the journey is an ordinary errand of its own,
for the keys that are still open, with the knowledge about states that belongs to its address: so bytes are read
by the description that came from where they came from. Like any errand it knows no sockets and no threads.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from qstate.errors import Detail, FailureCode, Overloaded, QStateError, QueryError, Retry
from qstate.keys import Key, Namespace
from qstate.protocol import Describe, Ping, Request
from qstate.runtime.client.failover_plan import JobHealth, Journey, Leg
from qstate.runtime.client.operations import NO_DEMANDS, CallErrand, Errand, GetErrand, Links
from qstate.runtime.client.state_cache import KnownState, KnownStates
from qstate.runtime.routing.routed_get import Ask, LookUp
from qstate.views import ReadOnlyState

__all__ = ["COMMITTED", "CallDetour", "Detour", "GetDetour", "Ways", "get_errand"]

#: The isolation that fallbacks can answer.
COMMITTED = "committed"


class Ways:
    """The addresses that one client may ask, the job's own proxy first, with what was learnt at each."""

    __slots__ = ("job", "states")

    def __init__(self, states: Sequence[KnownStates]) -> None:
        self.states = states
        self.job = JobHealth()

    def find(self, job: str, state: str) -> KnownState | None:
        """What is known about a state from any of them."""
        return next((known for states in self.states if (known := states.find(job, state)) is not None), None)


class _LegLinks:
    """The client's links as the errand of one leg uses them: look-ups go to the leg's address."""

    __slots__ = ("_detour", "_links", "random", "states")

    def __init__(self, detour: Detour, links: Links, states: KnownStates) -> None:
        self._detour = detour
        self._links = links
        self.random = links.random
        self.states = states

    def send(self, errand: Errand, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None) -> None:
        self._links.send(errand, command, now, self.states.proxy)

    def finished(self, errand: Errand) -> None:
        now = time.monotonic()
        if now >= errand.deadline:
            self.gave_up(errand, now)
        self._detour.leg_ended(errand, now)

    def stalls(self, errand: Errand) -> Mapping[str, Detail]:
        return self._links.stalls(errand)

    def gave_up(self, errand: Errand, now: float) -> None:
        self._links.gave_up(errand, now)

    def progressed(self, errand: Errand) -> None:
        self._links.progressed(self._detour)


class Detour(Errand):
    """An errand that is a journey of others."""

    __slots__ = ("_errands", "_journey", "_leg", "_under_way", "_ways")

    def __init__(self, links: Links, ways: Ways, keys: tuple[Any, ...], deadline: float) -> None:
        super().__init__(links, keys, deadline, None)
        self._ways = ways
        self._journey = Journey(len(keys), len(ways.states), deadline=deadline, job=ways.job, random=links.random)
        #: One for each leg of the journey so far.
        self._errands: list[Errand] = []
        #: None between two legs.
        self._under_way: Errand | None = None
        self._leg: Leg | None = None

    @abstractmethod
    def errand_of(self, links: Links, leg: Leg) -> Errand:
        """The errand of a leg."""

    @property
    def wake_at(self) -> float:
        if self._under_way is not None:
            return self._under_way.wake_at
        return self.deadline if self._leg is None else self._leg.start

    def start(self) -> None:
        now = time.monotonic()
        self._begin(self._journey.start(now))

    def on_time(self, now: float) -> None:
        if self.finished:
            return
        if self._under_way is not None:
            self._under_way.on_time(now)
        elif self._leg is not None and now >= self._leg.start:
            self._begin(self._leg)

    def leg_ended(self, errand: Errand, now: float) -> None:
        """The errand of a leg has its outcome."""
        if self.finished or self._leg is None:
            return
        if errand.error is not None and not isinstance(errand.error, QueryError):
            self.fail(errand.error)
            return
        unheard = _is_unheard(errand, self._ways.states[self._leg.way], now)
        self._under_way = None
        self._leg = self._journey.ended(
            errand.codes,
            now,
            unheard=unheard,
            unreached=errand.unreached,
            hopeless=errand.hopeless,
            wait_s=_wish_s(errand.error),
        )
        if self._leg is None:
            self.finished = True
            self._links.finished(self)
        elif self._leg.start <= now:
            self._begin(self._leg)
        else:
            self._links.progressed(self)

    def fail(self, error: QStateError) -> None:
        if self._under_way is not None:
            # What still comes for it is for nobody.
            self._under_way.finished = True
        super().fail(error)

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        raise NotImplementedError("the errands of the legs send requests")

    def _begin(self, leg: Leg) -> None:
        self._leg = leg
        states = self._ways.states[leg.way]
        errand = self.errand_of(_LegLinks(self, self._links, states), leg)
        self._errands.append(errand)
        self._under_way = errand
        errand.start()


def _is_unheard(errand: Errand, states: KnownStates, now: float) -> bool:
    """Whether the address itself could not be reached, or said nothing; what it says of others is an answer."""
    error = errand.error
    if not isinstance(error, QueryError):
        return False
    if error.code is FailureCode.UNAVAILABLE:
        return (error.details.get("host"), error.details.get("port")) == states.proxy
    # A proxy answers before the deadline that it was given; of an owner's silence it says nothing.
    asked_owners = states.direct and errand.knows_owners
    silent = error.code is FailureCode.DEADLINE_EXCEEDED and now >= errand.deadline and not asked_owners
    return silent or error.code is FailureCode.SHUTTING_DOWN


def _wish_s(error: QStateError | None) -> float:
    """How long an overloaded address wants to be left alone. The detail may be missing, or be anything."""
    wish = error.details.get("retry_after_ms") if isinstance(error, Overloaded) else None
    return wish / 1000 if isinstance(wish, int | float) and not isinstance(wish, bool) and wish > 0 else 0.0


def get_errand(
    links: Links,
    ways: Ways | None,
    target: tuple[str, str],
    keys: tuple[Key, ...],
    *,
    deadline: float,
    namespace: Namespace,
    isolation: str,
    demands: Mapping[str, Detail],
) -> GetErrand | GetDetour:
    """A get of the job alone, or one that may go elsewhere when there are ways and it asks for what was committed."""
    if ways is not None and isolation == COMMITTED:
        return GetDetour(links, ways, target, keys, deadline=deadline, namespace=namespace, demands=demands)
    return GetErrand(links, target, keys, deadline=deadline, namespace=namespace, isolation=isolation, demands=demands)


_MOVED = frozenset(code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN) | {FailureCode.UNAVAILABLE}
#: Of a leg, which is short: whoever is there at all has to be heard before it ends.
LEG_MARGIN = 1 / 3


class _LegGet(GetErrand):
    __slots__ = ("tries",)
    tries: Mapping[int, int]
    margin = LEG_MARGIN


class _LegCall(CallErrand):
    __slots__ = ("tries",)
    tries: Mapping[int, int]
    margin = LEG_MARGIN


class GetDetour(Detour):
    """Get the values of keys. Its result is a view, or None, for each key."""

    __slots__ = ("_demands", "_namespace", "_target")

    def __init__(
        self,
        links: Links,
        ways: Ways,
        target: tuple[str, str],
        keys: tuple[Key, ...],
        *,
        deadline: float,
        namespace: Namespace = None,
        demands: Mapping[str, Detail] = NO_DEMANDS,
    ) -> None:
        super().__init__(links, ways, keys, deadline)
        self._target = target
        self._namespace = namespace
        self._demands = demands

    def errand_of(self, links: Links, leg: Leg) -> Errand:
        keys = self._keys
        if len(leg.positions) != len(keys):
            keys = tuple(keys[position] for position in leg.positions)
        errand = _LegGet(
            links,
            self._target,
            keys,
            deadline=leg.until,
            namespace=self._namespace,
            isolation=COMMITTED,
            demands=self._demands,
        )
        errand.tries = leg.tries
        return errand

    def leg_ended(self, errand: Errand, now: float) -> None:
        states = self._ways.states[self._journey.legs[-1].way]
        if states.direct and not _MOVED.isdisjoint(errand.codes):
            # The leg may have ended before it looked up anew; the next query must not go to the same owners.
            states.drop(*self._target)
        super().leg_ended(errand, now)

    def result(self) -> list[ReadOnlyState | None]:
        """A view or None for each key, in their order. Raises the error of the first key that has one."""
        found = self.results()
        for entry in found:
            if isinstance(entry, QStateError):
                raise entry
        return found

    def by_key(self) -> dict[Key, ReadOnlyState | None]:
        """`result`, with the keys."""
        return dict(zip(self._keys, self.result(), strict=True))

    def results(self) -> list[Any]:
        """A view, None or a `QueryError` for each key. Raises the error of the request as a whole."""
        if self.error is not None:
            raise self.error
        told = {number: self._told(number) for number in set(self._journey.verdicts)}
        return [told[number][position] for position, number in enumerate(self._journey.verdicts)]

    def _told(self, number: int) -> dict[int, Any]:
        """What a leg found, by position."""
        positions, errand = self._journey.legs[number].positions, self._errands[number]
        assert isinstance(errand, GetErrand)
        try:
            return dict(zip(positions, errand.results(), strict=True))
        except QueryError as exc:
            # One each: an exception collects the traceback of whoever raises it.
            return {position: copy(exc) for position in positions}


class CallDetour(Detour):
    """Ask a proxy something that is not about keys: the states of a job, or whether it is there."""

    __slots__ = ("_request",)

    def __init__(self, links: Links, ways: Ways, request: type[Ping] | Describe, deadline: float) -> None:
        super().__init__(links, ways, (None,), deadline)
        self._request = request

    def errand_of(self, links: Links, leg: Leg) -> Errand:
        errand = _LegCall(links, self._request, leg.until)
        errand.tries = leg.tries
        return errand

    def result(self) -> tuple[Mapping[str, Any], ...]:
        """The entries of the description; nothing for a ping."""
        if self.error is not None:
            raise self.error
        (number,) = self._journey.verdicts
        entries: tuple[Mapping[str, Any], ...] = self._errands[number].result()
        return entries
