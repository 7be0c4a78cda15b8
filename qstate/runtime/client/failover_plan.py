"""When a committed query is asked at a standby server instead of the job, and when it goes back to the job.

Rules of this module: decisions only. It opens no socket, reads no clock (every event brings the time) and draws its
jitter from a generator it is given. A query travels in legs: each asks one address for the keys that are still open,
until a time of its own. `detour` carries the legs out and tells what came of them.

    the order     the job's own proxy (way 0), then each fallback in turn, then the same again after a pause that grows.
                  A job that was found down less than `DOWN_S` ago is asked last; one query in that time tries it
                  A way that asked to be left alone for a while (OVERLOADED) is not asked sooner
    the time      half of what is left, and no more than `PATIENCE_S`, twice that in the second round, and so on.
                  Little of it (`HASTE_S`) while some of the job's keys are without an owner

What happens to a key, by its latest answer:

    a value, or none               done
    a failure about the request    done, whoever says it; so is UNAVAILABLE of a request that was sent, for it may be
                                   what its owner died of
    another fatal failure          of the job: done, unless it is one that jobs have while they start (`STARTING`)
                                   of a fallback, or `STARTING`: the next leg; done, when nobody said anything else
                                   in a whole round
    a failure that may pass        the next leg
    no answer in the leg's time    the next leg
    nobody can be reached          after two rounds, when nobody ever was reached; else as long as there is time
    the deadline                   its latest failure at the job, or else at a fallback
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from qstate.errors import ERROR_CLASSES, FailureCode, Retry
from qstate.runtime.routing.routed_get import LAST_TRY_S, backoff_s

__all__ = ["JOB", "JobHealth", "Journey", "Leg"]

#: The number of the job's own proxy; the fallbacks' are 1, 2, ...
JOB = 0
PATIENCE_S = 0.5
HASTE_S = 0.06
#: With less than this left, a leg takes all of it.
LEAST_S = 0.02
DOWN_S = 1.0
_MOST_DOUBLINGS = 6

#: What a job says of itself, or its proxy of it, before it has started.
STARTING = frozenset({FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE})
_ABOUT_THE_REQUEST = frozenset({FailureCode.WRONG_KEY_TYPE, FailureCode.MALFORMED, FailureCode.TOO_LARGE})
#: How often the job is asked in one leg before such a failure ends the leg; by itself it might last the leg's time.
_TRIES_AT_THE_JOB: Mapping[int, int] = {
    FailureCode.UNAVAILABLE: 1,
    FailureCode.SHUTTING_DOWN: 1,
    FailureCode.UNKNOWN_JOB: 2,
    FailureCode.UNKNOWN_STATE: 2,
    FailureCode.UNKNOWN_KEY_GROUP_LOCATION: 2,
    FailureCode.RESTORING: 2,
}
_TRIES_AT_A_FALLBACK: Mapping[int, int] = dict.fromkeys(FailureCode, 1)
#: Failures that show that the job lacks an owner for some of its keys.
_WANTING = frozenset({*_TRIES_AT_THE_JOB, FailureCode.DEADLINE_EXCEEDED}) - STARTING
_FATAL = frozenset(int(code) for code, error in ERROR_CLASSES.items() if error.retry is Retry.FATAL)


class Leg(NamedTuple):
    """Ask one way for the keys at these positions, from `start` to `until`.

    `tries` says of failure codes how often the way is asked before they are final for this leg.
    """

    way: int
    positions: Sequence[int]
    start: float
    until: float
    tries: Mapping[int, int]


class JobHealth:
    """How the job was found by the queries of one client. Not thread-safe: one caller at a time."""

    __slots__ = ("_answered_at", "_ask_at", "_down", "_wanting_until")

    def __init__(self) -> None:
        self._down = False
        self._ask_at = -math.inf
        self._answered_at = -math.inf
        self._wanting_until = -math.inf

    def worth_asking(self, now: float) -> bool:
        """Whether to begin with the job. While it is down, that is so for one query in `DOWN_S`."""
        if self._down:
            if now < self._ask_at:
                return False
            self._ask_at = now + DOWN_S
        return True

    def patience_s(self, now: float) -> float:
        """How long the job may take before a query goes elsewhere."""
        return HASTE_S if now < self._wanting_until else PATIENCE_S

    def answered(self, now: float, wanting: bool) -> None:
        """The job's proxy answered; `wanting` says that it could not do so for every key."""
        self._down = False
        self._answered_at = now
        if wanting:
            self._wanting_until = now + DOWN_S

    def unheard(self, since: float, now: float) -> None:
        """The job's proxy could not be reached, or said nothing, since that time."""
        if self._answered_at <= since:
            self._down = True
            self._ask_at = now + DOWN_S


class Journey:
    """One query on its way. `legs` are those so far; `verdicts` has the leg that decides, for each key."""

    __slots__ = (
        "_deadline",
        "_hopeful",
        "_hopeless",
        "_job",
        "_not_before",
        "_order",
        "_random",
        "_ranks",
        "_round",
        "_turn",
        "legs",
        "verdicts",
    )

    def __init__(self, keys: int, ways: int, *, deadline: float, job: JobHealth, random: Random) -> None:
        self._deadline = deadline
        self._job = job
        self._random = random
        self._order = list(range(ways))
        self._round = 0
        self._turn = 0
        #: By way.
        self._not_before = [-math.inf] * ways
        #: Positions of keys that somebody did not refuse for good, in this round.
        self._hopeful: set[int] = set()
        #: How many legs in a row came to an address that refuses, and never was reached.
        self._hopeless = 0
        #: How much the failure that stands for each key tells.
        self._ranks = [-1] * keys
        self.verdicts = [0] * keys
        self.legs: list[Leg] = []

    def start(self, now: float) -> Leg:
        """The first leg, which starts now."""
        if not self._job.worth_asking(now):
            self._order.append(self._order.pop(JOB))
        return self._leg(range(len(self.verdicts)), now)

    def ended(
        self,
        codes: Sequence[int],
        now: float,
        *,
        unheard: bool,
        unreached: Collection[int] = (),
        hopeless: bool = False,
        wait_s: float = 0.0,
    ) -> Leg | None:
        """The latest leg has ended, with these failure codes, 0 for a key that has an answer.

        `unheard` says that the address itself could not be reached or said nothing, `unreached` of which codes (by
        their index) nobody was asked for that reason, `hopeless` that it never was reached, `wait_s` how long it wants
        to be left alone. Gives the next leg, or None at the end: every key has its verdict then.
        """
        leg = self.legs[-1]
        self._not_before[leg.way] = now + wait_s
        self._hopeless = self._hopeless + 1 if hopeless else 0
        still = [
            place
            for index, (place, code) in enumerate(zip(leg.positions, codes, strict=True))
            if self._stays_open(leg, place, code, reached=index not in unreached)
        ]
        if leg.way == JOB:
            if unheard:
                self._job.unheard(leg.start, now)
            else:
                self._job.answered(now, wanting=not _WANTING.isdisjoint(codes))
        if self._hopeless == 2 * len(self._order):
            return None
        start = now
        for _ in self._order:
            self._turn += 1
            if self._turn == len(self._order):
                nobody = self._hopeless == len(self._order)
                start += LAST_TRY_S if nobody else backoff_s(self._round, self._random)
                still = [place for place in still if place in self._hopeful]
                self._hopeful.clear()
                self._turn = 0
                self._round += 1
            at = max(start, self._not_before[self._order[self._turn]])
            if not still or at < self._deadline:
                return self._leg(still, at) if still else None
        return None

    def _stays_open(self, leg: Leg, position: int, code: int, *, reached: bool) -> bool:
        number = len(self.legs) - 1
        at_job = leg.way == JOB
        lost = code == FailureCode.UNAVAILABLE
        fatal = not lost and (code in _FATAL or code not in ERROR_CLASSES)
        late = code == FailureCode.DEADLINE_EXCEEDED
        settled = not code or code in _ABOUT_THE_REQUEST or (lost and reached)
        if settled or (fatal and at_job and not late and code not in STARTING):
            self.verdicts[position] = number
            return False
        rank = 0 if late else 1 + at_job
        if rank >= self._ranks[position]:
            self._ranks[position] = rank
            self.verdicts[position] = number
        if late or not fatal:
            self._hopeful.add(position)
        return True

    def _leg(self, positions: Sequence[int], start: float) -> Leg:
        way = self._order[self._turn]
        left = self._deadline - start
        patience_s = self._job.patience_s(start) if way == JOB and not self._round else PATIENCE_S
        share = min(patience_s * (1 << min(self._round, _MOST_DOUBLINGS)), left / 2)
        until = self._deadline if left - share < LEAST_S else start + share
        tries = _TRIES_AT_A_FALLBACK if way else _TRIES_AT_THE_JOB
        self.legs.append(Leg(way, positions, start, until, tries))
        return self.legs[-1]
