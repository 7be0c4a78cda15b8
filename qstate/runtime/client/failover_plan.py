"""The failover plan of a committed query: when it asks a standby server, and when it returns to the job.

Rules of this module: decisions only. It opens no socket, reads no clock (every event brings the time) and draws its
jitter from a generator it is given. A plan is a sequence of attempts. Each attempt asks one endpoint, for a limited
time, for the keys that are still open. `failover` carries the attempts out and reports their outcome.

    the order     the job's own proxy (endpoint 0), each fallback in turn, then the same again after a growing pause.
                  A job whose circuit breaker is open is asked last; one query in `DOWN_S` still asks it first.
                  An endpoint that asked for a pause (OVERLOADED) is not asked before the pause ends
    the time      half of the time left, and at most `ATTEMPT_TIMEOUT_S`, which doubles with each round.
                  `SHORT_ATTEMPT_TIMEOUT_S` at the job while some of its keys have no owner

What happens to a key, by its latest answer:

    a value, or none               done
    a failure about the request    done, from any endpoint; so is UNAVAILABLE of a request that was sent, because the
                                   request may have killed its owner
    another fatal failure          of the job: done, except failures of a job that is starting (`STARTING`)
                                   of a fallback, or `STARTING`: the next attempt; done after a whole round of these
    a failure that may pass        the next attempt
    no answer in the time          the next attempt
    no endpoint can be reached     done after two rounds if none ever was reached; else asked until the deadline
    the deadline                   its latest failure at the job, or else at a fallback
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from qstate.errors import ERROR_CLASSES, FailureCode, Retry
from qstate.runtime.routing.routed_get import LAST_TRY_S, backoff_s

__all__ = ["JOB", "Attempt", "CircuitBreaker", "FailoverPlan"]

#: The number of the job's own proxy; the fallbacks' are 1, 2, ...
JOB = 0
ATTEMPT_TIMEOUT_S = 0.5
SHORT_ATTEMPT_TIMEOUT_S = 0.06
#: With less than this left, an attempt takes all of it.
MIN_ATTEMPT_S = 0.02
DOWN_S = 1.0
_MOST_DOUBLINGS = 6

#: Failures that a job's proxy sends until the job has started.
STARTING = frozenset({FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE})
_ABOUT_THE_REQUEST = frozenset({FailureCode.WRONG_KEY_TYPE, FailureCode.MALFORMED, FailureCode.TOO_LARGE})
#: Tries at the job before this failure ends an attempt. Without the limit, retries would use the attempt's whole time.
_TRIES_AT_THE_JOB: Mapping[int, int] = {
    FailureCode.UNAVAILABLE: 1,
    FailureCode.SHUTTING_DOWN: 1,
    FailureCode.UNKNOWN_JOB: 2,
    FailureCode.UNKNOWN_STATE: 2,
    FailureCode.UNKNOWN_KEY_GROUP_LOCATION: 2,
    FailureCode.RESTORING: 2,
}
#: After these failures an attempt at the job tries its other proxies.
_PROXY_GONE = frozenset({FailureCode.UNAVAILABLE, FailureCode.SHUTTING_DOWN})
_TRIES_AT_A_FALLBACK: Mapping[int, int] = dict.fromkeys(FailureCode, 1)
#: Failures that show that some of the job's keys have no owner.
_OWNER_MISSING = frozenset({*_TRIES_AT_THE_JOB, FailureCode.DEADLINE_EXCEEDED}) - STARTING
_FATAL = frozenset(int(code) for code, error in ERROR_CLASSES.items() if error.retry is Retry.FATAL)


class Attempt(NamedTuple):
    """Ask one endpoint for the keys at these positions, from `start` to `until`.

    `tries` has, by failure code, the number of tries after which the code is final for this attempt.
    """

    endpoint: int
    positions: Sequence[int]
    start: float
    until: float
    tries: Mapping[int, int]


class CircuitBreaker:
    """Decides whether a query begins with the job, by how earlier queries of the client found it. Not thread-safe."""

    __slots__ = ("_answered_at", "_ask_at", "_open", "_owner_missing_until")

    def __init__(self) -> None:
        self._open = False
        self._ask_at = -math.inf
        self._answered_at = -math.inf
        self._owner_missing_until = -math.inf

    def allows_query(self, now: float) -> bool:
        """Whether to begin with the job. While the breaker is open, it allows one query in `DOWN_S`."""
        if self._open:
            if now < self._ask_at:
                return False
            self._ask_at = now + DOWN_S
        return True

    def timeout_s(self, now: float) -> float:
        """The longest time of a query's first attempt at the job."""
        return SHORT_ATTEMPT_TIMEOUT_S if now < self._owner_missing_until else ATTEMPT_TIMEOUT_S

    def record_answer(self, now: float, owner_missing: bool) -> None:
        """The job's proxy answered; `owner_missing`: some of the keys had no owner."""
        self._open = False
        self._answered_at = now
        if owner_missing:
            self._owner_missing_until = now + DOWN_S

    def record_failure(self, since: float, now: float) -> None:
        """The job's proxy was not reached, or sent no answer, in an attempt that began at `since`."""
        if self._answered_at <= since:
            self._open = True
            self._ask_at = now + DOWN_S


class FailoverPlan:
    """The plan of one query. `attempts` are those so far; `verdicts` is, for each key, the attempt that decides."""

    __slots__ = (
        "_breaker",
        "_deadline",
        "_hopeful",
        "_hopeless",
        "_not_before",
        "_order",
        "_random",
        "_ranks",
        "_round",
        "_tries_at_the_job",
        "_turn",
        "attempts",
        "verdicts",
    )

    def __init__(
        self,
        keys: int,
        endpoints: int,
        *,
        deadline: float,
        breaker: CircuitBreaker,
        random: Random,
        proxies: int = 1,
    ) -> None:
        """`proxies` is the number of the job's proxies: an attempt at the job may try each of them."""
        self._deadline = deadline
        self._tries_at_the_job: Mapping[int, int] = {
            code: max(tries, proxies) if code in _PROXY_GONE else tries for code, tries in _TRIES_AT_THE_JOB.items()
        }
        self._breaker = breaker
        self._random = random
        self._order = list(range(endpoints))
        self._round = 0
        self._turn = 0
        #: By endpoint: the earliest time of the next attempt there.
        self._not_before = [-math.inf] * endpoints
        #: Positions of keys that met a failure that may pass, or no answer, in this round.
        self._hopeful: set[int] = set()
        #: How many attempts in a row met an endpoint that refused the connection and never was reached.
        self._hopeless = 0
        #: The rank of each key's failure; a failure replaces one of the same or a lower rank.
        self._ranks = [-1] * keys
        self.verdicts = [0] * keys
        self.attempts: list[Attempt] = []

    def start(self, now: float) -> Attempt:
        """The first attempt, which starts now."""
        if not self._breaker.allows_query(now):
            self._order.append(self._order.pop(JOB))
        return self._add_attempt(range(len(self.verdicts)), now)

    def ended(
        self,
        codes: Sequence[int],
        now: float,
        *,
        unresponsive: bool,
        unreached: Collection[int] = (),
        hopeless: bool = False,
        wait_s: float = 0.0,
    ) -> Attempt | None:
        """The latest attempt has ended, with a failure code for each of its keys, 0 for a key that has an answer.

        `unresponsive`: the endpoint itself was not reached or sent no answer. `unreached`: the indexes of the codes
        whose keys were not sent for that reason. `hopeless`: the endpoint refused and never was reached. `wait_s`: the
        pause that the endpoint asks for. Returns the next attempt, or None at the end: every key has its verdict then.
        """
        attempt = self.attempts[-1]
        self._not_before[attempt.endpoint] = now + wait_s
        self._hopeless = self._hopeless + 1 if hopeless else 0
        still = [
            place
            for index, (place, code) in enumerate(zip(attempt.positions, codes, strict=True))
            if self._stays_open(attempt, place, code, reached=index not in unreached)
        ]
        if attempt.endpoint == JOB:
            if unresponsive:
                self._breaker.record_failure(attempt.start, now)
            else:
                self._breaker.record_answer(now, owner_missing=not _OWNER_MISSING.isdisjoint(codes))
        if self._hopeless == 2 * len(self._order):
            return None
        start = now
        for _ in self._order:
            self._turn += 1
            if self._turn == len(self._order):
                none_reached = self._hopeless == len(self._order)
                start += LAST_TRY_S if none_reached else backoff_s(self._round, self._random)
                still = [place for place in still if place in self._hopeful]
                self._hopeful.clear()
                self._turn = 0
                self._round += 1
            at = max(start, self._not_before[self._order[self._turn]])
            if not still or at < self._deadline:
                return self._add_attempt(still, at) if still else None
        return None

    def _stays_open(self, attempt: Attempt, position: int, code: int, *, reached: bool) -> bool:
        number = len(self.attempts) - 1
        at_job = attempt.endpoint == JOB
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

    def _add_attempt(self, positions: Sequence[int], start: float) -> Attempt:
        endpoint = self._order[self._turn]
        left = self._deadline - start
        timeout_s = self._breaker.timeout_s(start) if endpoint == JOB and not self._round else ATTEMPT_TIMEOUT_S
        share = min(timeout_s * (1 << min(self._round, _MOST_DOUBLINGS)), left / 2)
        until = self._deadline if left - share < MIN_ATTEMPT_S else start + share
        tries = _TRIES_AT_A_FALLBACK if endpoint else self._tries_at_the_job
        self.attempts.append(Attempt(endpoint, positions, start, until, tries))
        return self.attempts[-1]
