"""The routing of one get: split by owner, retried or looked up again where that helps, merged in order.

Rules of this module: decisions only. It opens no socket, reads no clock (every event brings the time) and draws its
jitter from a generator it is given, so plain calls can test each decision. The proxy and the clients carry out its
commands and report the outcome as events:

    start ----------------> Ask(part, owner, keys)  -> on_values(part), on_failure(part), on_unreached(part)
    on_time(at wake_at) --> LookUp(stale)           -> on_located, on_failure(LOOK_UP), on_unreached(LOOK_UP)
                            Answer / Refuse         the last command; later events are ignored

What happens to a key, by its latest answer:

    a value, or none          done
    a fatal failure           done, with that code
    TOO_LARGE, several keys   asked again in two halves, at once; with `most_bytes`, the end of the get: the client
                              has to ask for fewer keys, and the proxy stops collecting values that fit no answer
    retry here                asked again after the back-off (OVERLOADED: not before `retry_after_ms`)
    look up again             the location is looked up again after the back-off, then the key is asked for again
    no owner, or none that    UNKNOWN_KEY_GROUP_LOCATION, which is: look up again
      can be reached
    no proxy can be reached   UNAVAILABLE: tried again, once only when that proxy never was reached
    no sign of life from the  DEADLINE_EXCEEDED: asked again, of another proxy; only clients that know several
      proxy                   watch for that
    the connection broke      UNAVAILABLE, which is fatal: the request may have killed the owner
      after the request
    a failure with `tries`    final after that many tries in a row, whatever its code
    the deadline              its latest failure; DEADLINE_EXCEEDED without one. A failure is also final
                              when the next try could not start before the deadline, or before `retry_until`

Values are read by the description of the state whose fingerprint they have. It may be another one than that of the
location, because the job was restarted with another program: then the location is looked up again. When the new
location has another description, earlier answers have another form, so every key with a value is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from qstate.errors import ERROR_CLASSES, Detail, FailureCode, Retry, WrongKeyType
from qstate.keys import Key, check_key
from qstate.protocol.messages import NO_EPOCH, PLAIN
from qstate.runtime.routing.location import UNSOUND_KEY, LocationTable, Owner

__all__ = [
    "ANY_NUMBER",
    "LOOK_UP",
    "Answer",
    "Ask",
    "Command",
    "LookUp",
    "Refuse",
    "Result",
    "RoutedGet",
    "backoff_s",
    "retry_after_s",
]

FIRST_BACKOFF_S = 0.005
LONGEST_BACKOFF_S = 0.200
#: The part number of a look-up; `RoutedGet` counts its parts from 1.
LOOK_UP = 0
#: The pause before the one further try of a proxy that was never reached.
LAST_TRY_S = 0.200

#: Bytes: the serialized value. None: not found. An int: the failure code.
Result = bytes | int | None

#: The `tries` of a get without limits: it retries as long as a retry may help.
ANY_NUMBER: Mapping[int, int] = {}

_RETRY: Mapping[int, Retry] = {int(code): error.retry for code, error in ERROR_CLASSES.items()}


# Structs of msgspec, because each get makes several: a named tuple takes four times as long to make.
class Ask(Struct, frozen=True):
    """Send a get of these keys to the owner; the events of its outcome carry the same `part`."""

    part: int
    owner: Owner
    keys: tuple[Key, ...]


class LookUp(Struct, frozen=True):
    """Find the location. A cache that still has `stale` must drop it first; a newer entry will do."""

    part: ClassVar[int] = LOOK_UP
    stale: LocationTable | None


class Answer(Struct, frozen=True):
    """The end: an epoch and a result for each key, in the order of the keys.

    The values are to be read by the description with this fingerprint, empty if there are none. `plain`: no result is a
    failure.
    """

    epochs: tuple[int, ...]
    results: tuple[Result, ...]
    fingerprint: str
    plain: bool


class Refuse(Struct, frozen=True):
    """The end: the get failed as a whole, every key for the same reason."""

    code: int
    details: Mapping[str, Detail]


Command = Ask | LookUp | Answer | Refuse


class _Part(Struct, frozen=True):
    """Keys (by position) that are sent together, or wait together."""

    positions: Sequence[int]
    attempt: int
    table: LocationTable | None
    owner: Owner | None
    #: The latest failure of these keys, 0 for none.
    failure: int = 0


class _Failed(Struct, frozen=True):
    """A failure of keys. `retry` and `pause_s`, unless None, replace the code's retry and the back-off."""

    code: int
    details: Mapping[str, Detail]
    retry: Retry | None = None
    pause_s: float | None = None


class _Waiting(Struct, frozen=True):
    """A part to be tried again at `due`."""

    due: float
    part: _Part
    look_up: bool


def backoff_s(attempt: int, random: Random) -> float:
    """Seconds before the next try after `attempt` earlier failures: 5 ms, doubling to 200 ms, less up to a half."""
    # Beyond 2**6 the cap holds anyway, and the power of a large attempt would not fit a float.
    longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * (1 << min(attempt, 6)))
    return longest * (1.0 - random.random() / 2)


class RoutedGet:
    """The routing of one get. Not thread-safe.

    `deadline` and every `now` are seconds of one monotonic clock. `table` is the location, if known. `tries` has, by
    failure code, the number of tries after which the code is final for a key, fatal or not; a caller sets it when it
    has another endpoint to ask. From `retry_until` on, every failure is final (None: the deadline). `most_bytes` bounds
    the size of all values together, when the answer has to fit a frame.
    """

    __slots__ = (
        "_deadline",
        "_details",
        "_epochs",
        "_fingerprint",
        "_keys",
        "_locating",
        "_most_bytes",
        "_parts",
        "_random",
        "_results",
        "_retry_until",
        "_table",
        "_tries",
        "_unanswered",
        "_waiting",
        "finished",
        "hopeless",
        "open_parts",
        "unreached",
        "wake_at",
    )

    def __init__(
        self,
        keys: tuple[Key, ...],
        *,
        deadline: float,
        random: Random,
        table: LocationTable | None = None,
        tries: Mapping[int, int] = ANY_NUMBER,
        retry_until: float | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._tries = tries
        self._most_bytes = most_bytes
        self._keys = keys
        self._deadline = deadline
        self._retry_until = deadline if retry_until is None else min(deadline, retry_until)
        self._random = random
        self._table = table
        self._parts = 0
        #: The parts that were asked for and whose outcome is not known.
        self.open_parts: dict[int, _Part] = {}
        self._locating: list[_Part] = []
        self._waiting: list[_Waiting] = []
        self._unanswered = len(keys)
        # Filled on the first merge: most gets are one part, whose answer is passed on unchanged.
        self._epochs: list[int] = []
        self._results: list[Result] = []
        self._details: dict[int, Mapping[str, Detail]] = {}
        #: That of the description in the latest location.
        self._fingerprint = "" if table is None else table.fingerprint
        #: The positions of keys that are UNAVAILABLE because no proxy was reached: no request was sent for them.
        self.unreached: set[int] = set()
        #: Whether a proxy refused the connection and never was reached: waiting does not help.
        self.hopeless = False
        #: When `on_time` is due next; each event may change it.
        self.wake_at = self._retry_until
        self.finished = False

    def start(self, now: float) -> list[Command]:
        """The first commands."""
        if not self._keys:
            return self._finish()
        everything = _Part(range(len(self._keys)), 0, self._table, None)
        if now >= self._deadline:
            self._settle(everything.positions, FailureCode.DEADLINE_EXCEEDED)
            return self._ending()
        if self._table is None:
            self._locating.append(everything)
            return [LookUp(None)]
        return self._route(everything, now) or self._ending()

    def on_values(
        self, part: int, epochs: Sequence[int], results: Sequence[Result], fingerprint: str, now: float
    ) -> list[Command]:
        """The owner answered each key of a part, by the description with this fingerprint."""
        asked = self.open_parts.pop(part, None)
        if asked is None or self.finished:
            return []
        if len(results) != len(asked.positions) or len(epochs) != len(results):
            reason = {"reason": "the answer has another number of keys than the request"}
            self._fail(asked, _Failed(FailureCode.INTERNAL, reason), now)
            return self._ending()
        plain = PLAIN.issuperset(map(type, results))
        if fingerprint != self._fingerprint and (plain or not all(isinstance(result, int) for result in results)):
            reason = {"reason": "the answer is of another description of the state than its location"}
            self._fail(asked, _Failed(FailureCode.UNKNOWN_STATE_ID, reason), now)
            return self._ending()
        if plain and len(results) == self._unanswered == len(self._keys):
            self.finished = True
            return [Answer(tuple(epochs), tuple(results), fingerprint, True)]
        if self._is_too_large(results):
            return self._refuse(FailureCode.TOO_LARGE, {"field": "answer"})
        self._merge(asked, epochs, results, now)
        return self._ending()

    def on_failure(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> list[Command]:
        """The owner refused a part as a whole, or the `LookUp` failed. It is tried again unless the code is fatal."""
        taken = self._take(part)
        if code == FailureCode.TOO_LARGE and part != LOOK_UP and any(len(each.positions) > 1 for each in taken):
            return self._halves(taken[0]) if self._most_bytes is None else self._refuse(code, details)
        again = part == LOOK_UP and _RETRY.get(code, Retry.FATAL) is not Retry.FATAL
        return self._fail_all(taken, _Failed(code, details, Retry.LOOK_UP_AGAIN if again else None), now)

    def on_silent(self, part: int, details: Mapping[str, Detail], now: float) -> list[Command]:
        """The peer that the part was sent to is silent, and was given up: ask again elsewhere."""
        failed = _Failed(FailureCode.DEADLINE_EXCEEDED, details, Retry.LOOK_UP_AGAIN)
        return self._fail_all(self._take(part), failed, now)

    def on_unsendable(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> list[Command]:
        """The protocol cannot encode the part. Halve it until the bad keys are alone: nothing was sent."""
        if part in self.open_parts and len(self.open_parts[part].positions) > 1:
            return [half for asked in self._take(part) for half in self._halves(asked)]
        return self.on_failure(part, code, details, now)

    def on_unreached(
        self, part: int, details: Mapping[str, Detail], now: float, *, hopeless: bool = False
    ) -> list[Command]:
        """The peer was not reached, so the part was not sent. `hopeless`: it refused and never was reached."""
        self.hopeless |= hopeless
        taken = self._take(part)
        for each in taken:
            self._fail(each, _not_reached(each, details, hopeless), now)
        return self._ending() if taken else []

    def on_located(self, table: LocationTable, now: float) -> list[Command]:
        """The answer to a `LookUp`."""
        parts, self._locating = self._locating, []
        if self.finished:
            return []
        self._table = table
        if self._has_new_description(table):
            parts = self._all_but_failed()
        return self._ending([command for part in parts for command in self._route(part, now)])

    def on_time(self, now: float) -> list[Command]:
        """`wake_at` has been reached. Earlier calls do nothing."""
        if self.finished:
            return []
        if now >= self._deadline:
            return self._expire()
        if now >= self._retry_until:
            return self._give_up_failed()
        due = [waiting for waiting in self._waiting if waiting.due <= now]
        if due:
            self._waiting = [waiting for waiting in self._waiting if waiting.due > now]
            self._wait()
        commands: list[Command] = []
        for waiting in due:
            commands += self._try_again(waiting, now)
        return self._ending(commands)

    def _has_new_description(self, table: LocationTable) -> bool:
        """Take the table's description of the state; returns whether it differs from the one before."""
        before, self._fingerprint = self._fingerprint, table.fingerprint
        return bool(before) and before != table.fingerprint

    def _all_but_failed(self) -> list[_Part]:
        """Every key that has not failed for good, to be asked for again: its value now has another form."""
        failed = {position for position, result in enumerate(self._results) if isinstance(result, int)}
        positions = [position for position in range(len(self._keys)) if position not in failed]
        self.open_parts.clear()
        self._waiting.clear()
        self._wait()
        self._unanswered = len(positions)
        return [_Part(positions, 1, self._table, None)] if positions else []

    def _try_again(self, waiting: _Waiting, now: float) -> list[Command]:
        # No new look-up if the table was replaced since the failure.
        if self._table is not None and not (waiting.look_up and waiting.part.table is self._table):
            return self._route(waiting.part, now)
        self._locating.append(waiting.part)
        return [LookUp(self._table)] if len(self._locating) == 1 else []

    def _route(self, part: _Part, now: float) -> list[Command]:
        table = self._table
        assert table is not None
        if table.sole_owner is not None:
            return [self._ask(part, part.positions, table, table.sole_owner)]
        try:
            shares = table.split([self._keys[position] for position in part.positions])
        except UNSOUND_KEY:
            part = replace(part, positions=[position for position in part.positions if self._is_sound(position)])
            shares = table.split([self._keys[position] for position in part.positions])
        commands: list[Command] = []
        for owner, found in shares:
            positions = [part.positions[index] for index in found]
            if owner is None:
                share = replace(part, positions=positions, table=table)
                self._fail(share, _Failed(FailureCode.UNKNOWN_KEY_GROUP_LOCATION, {}), now)
            else:
                commands.append(self._ask(part, positions, table, owner))
        return commands

    def _is_sound(self, position: int) -> bool:
        try:
            check_key(self._keys[position])
        except WrongKeyType as error:
            self._details[error.code] = error.details
            self._settle((position,), error.code)
            return False
        return True

    def _ask(self, part: _Part, positions: Sequence[int], table: LocationTable | None, owner: Owner) -> Ask:
        self._parts += 1
        self.open_parts[self._parts] = _Part(positions, part.attempt, table, owner, part.failure)
        keys = self._keys
        if len(positions) != len(keys):
            keys = tuple(keys[position] for position in positions)
        return Ask(self._parts, owner, keys)

    def _halves(self, part: _Part) -> list[Command]:
        assert part.owner is not None
        half = len(part.positions) // 2
        halves = (part.positions[:half], part.positions[half:])
        return [self._ask(part, positions, part.table, part.owner) for positions in halves]

    def _take(self, part: int) -> list[_Part]:
        """The part, or all that wait for the location if it is `LOOK_UP`. None of them after the end."""
        if part != LOOK_UP:
            taken = [self.open_parts.pop(part)] if part in self.open_parts else []
        else:
            # The location is unknown now, so the next try has to look it up.
            taken, self._locating = [replace(each, table=None, owner=None) for each in self._locating], []
            self._table = None
        return [] if self.finished else taken

    def _merge(self, part: _Part, epochs: Sequence[int], results: Sequence[Result], now: float) -> None:
        again: dict[int, list[int]] = {}
        self._make_room()
        for position, epoch, result in zip(part.positions, epochs, results, strict=True):
            if isinstance(result, int) and _RETRY.get(result, Retry.FATAL) is not Retry.FATAL:
                again.setdefault(result, []).append(position)
                continue
            self._epochs[position] = NO_EPOCH if isinstance(result, int) else epoch
            self._results[position] = result
            self._unanswered -= 1
        for code, positions in again.items():
            self._fail(replace(part, positions=positions), _Failed(code, {}), now)

    def _fail_all(self, parts: list[_Part], failed: _Failed, now: float) -> list[Command]:
        for part in parts:
            self._fail(part, failed, now)
        return self._ending() if parts else []

    def _fail(self, part: _Part, failed: _Failed, now: float) -> None:
        """Schedule another try of the part, or settle it with the code when there is none."""
        code, details = failed.code, failed.details
        retry = failed.retry or _RETRY.get(code, Retry.FATAL)
        if details:
            self._details[code] = details
        due = now + (backoff_s(part.attempt, self._random) if failed.pause_s is None else failed.pause_s)
        if code == FailureCode.OVERLOADED:
            due = max(due, now + retry_after_s(details))
        final = part.attempt + 1 >= self._tries[code] if code in self._tries else retry is Retry.FATAL
        if final or due >= self._retry_until:
            # The failure before the deadline says more than DEADLINE_EXCEEDED.
            late = code == FailureCode.DEADLINE_EXCEEDED
            self._settle(part.positions, part.failure if late and part.failure else code)
            if (code == FailureCode.UNAVAILABLE and failed.retry is not None) or (
                late and part.failure == FailureCode.UNAVAILABLE
            ):
                self.unreached.update(part.positions)
            return
        again = replace(part, attempt=part.attempt + 1, failure=code)
        borrowed = part.table is not None and part.table.borrows
        self._wait(_Waiting(due, again, borrowed or retry is Retry.LOOK_UP_AGAIN))

    def _wait(self, *more: _Waiting) -> None:
        self._waiting += more
        self.wake_at = min([self._retry_until, *(waiting.due for waiting in self._waiting)])

    def _give_up_failed(self) -> list[Command]:
        """It is too late for another try: settle what has failed."""
        failed = [*(waiting.part for waiting in self._waiting), *(part for part in self._locating if part.failure)]
        self._waiting, self._locating = [], [part for part in self._locating if not part.failure]
        self._settle_late(failed)
        self.wake_at = self._deadline
        return self._ending()

    def _settle_late(self, parts: Iterable[_Part]) -> None:
        for part in parts:
            self._settle(part.positions, part.failure or FailureCode.DEADLINE_EXCEEDED)
            if part.failure == FailureCode.UNAVAILABLE:  # it is tried again only if no peer was reached
                self.unreached.update(part.positions)

    def _settle(self, positions: Sequence[int], code: int) -> None:
        self._make_room()
        for position in positions:
            self._results[position] = code
        self._unanswered -= len(positions)

    def _make_room(self) -> None:
        if not self._results:
            self._epochs = [NO_EPOCH] * len(self._keys)
            self._results = [None] * len(self._keys)

    def _expire(self) -> list[Command]:
        self._settle_late([*self.open_parts.values(), *self._locating, *(waiting.part for waiting in self._waiting)])
        return self._finish()

    def _ending(self, commands: list[Command] | None = None) -> list[Command]:
        """The commands, or the last command when every key is settled."""
        if self._unanswered:
            return commands or []
        return self._finish()

    def _is_too_large(self, results: Sequence[Result]) -> bool:
        """Count the values of an answer; returns whether all so far exceed `most_bytes`."""
        if self._most_bytes is None:
            return False
        self._most_bytes -= sum(len(result) for result in results if isinstance(result, bytes))
        return self._most_bytes < 0

    def _refuse(self, code: int, details: Mapping[str, Detail]) -> list[Command]:
        self.finished = True
        return [Refuse(code, details)]

    def _finish(self) -> list[Command]:
        self.finished = True
        results = self._results
        first = results[0] if results else None
        if isinstance(first, int) and results.count(first) == len(results):
            return [Refuse(first, self._details.get(first, {}))]
        plain = PLAIN.issuperset(map(type, results))
        return [Answer(tuple(self._epochs), tuple(results), self._fingerprint, plain)]


def _not_reached(part: _Part, details: Mapping[str, Detail], hopeless: bool) -> _Failed:
    """The failure of a part whose owner or proxy was not reached: retried, unless that peer never was reached."""
    if part.owner is not None and part.owner.state_id:
        return _Failed(FailureCode.UNKNOWN_KEY_GROUP_LOCATION, details)
    if not hopeless:
        return _Failed(FailureCode.UNAVAILABLE, details, Retry.LOOK_UP_AGAIN)
    if not part.attempt:
        return _Failed(FailureCode.UNAVAILABLE, details, Retry.LOOK_UP_AGAIN, LAST_TRY_S)
    return _Failed(FailureCode.UNAVAILABLE, {**details, "tries": part.attempt + 1}, Retry.FATAL)


def retry_after_s(details: Mapping[str, Detail]) -> float:
    """The pause that an overloaded peer asks for. The peer may leave the detail out, or send any type."""
    wait_ms = details.get("retry_after_ms")
    return wait_ms / 1000 if isinstance(wait_ms, int | float) and not isinstance(wait_ms, bool) and wait_ms > 0 else 0.0
