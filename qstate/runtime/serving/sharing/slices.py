"""A get of many keys in slices, between which other requests have their turns.

Rules of this module: it knows requests, answers and the time. It must not know what reads a slice.

A slice takes about as long as a turn may: the next one has more keys after a quick one, fewer after a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from qstate.backends.answers import bounded, too_large
from qstate.backends.contract import Isolation
from qstate.errors import TooLarge
from qstate.keys import Key, key_encoder
from qstate.protocol.messages import Get, Values

__all__ = ["MOST_AT_ONCE", "ValueSteps", "in_slices", "marks_of"]

#: A get of more keys is answered in slices. So few take less time than a turn, unless they are large.
MOST_AT_ONCE = 200
FIRST_KEYS = 2
QUICK_S, SLOW_S = 0.000_3, 0.001

#: What it comes to after each slice: None, and the values after the last one.
ValueSteps = Iterator[Values | None]
_COMMITTED = Isolation.COMMITTED.value
#: For so few keys even a set whose hashes all collide is fast.
_FEW = 256


def in_slices(request: Get, read: Callable[[Get, int], Values], most_bytes: int) -> ValueSteps:
    """The values of a get: `read(request, most_bytes)` gives those of a slice, which have at most so many bytes.

    Of equal keys only one is read. The results of a committed read stay of one epoch: when one was committed
    meanwhile, all keys are read again at once. Raises what `read` raises.
    """
    marks = marks_of(request.keys)
    once = dict(zip(marks, request.keys, strict=True))
    if len(once) == len(marks):
        yield from _slices(request, read, most_bytes)
        return
    for values in _slices(request._replace(keys=tuple(once.values())), read, most_bytes):
        yield values and _repeated(values, marks, list(once), most_bytes)


def _repeated(values: Values, marks: Sequence[Key], once: Sequence[Key], most_bytes: int) -> Values:
    """The values of all keys, from those of the different ones."""
    places = dict(zip(once, range(len(once)), strict=True))
    wanted = [places[mark] for mark in marks]
    results = bounded((values.results[place] for place in wanted), most_bytes)  # type: ignore[misc]
    return values._replace(epochs=tuple(values.epochs[place] for place in wanted), results=tuple(results))


def marks_of(keys: Sequence[Key]) -> Sequence[Key]:
    """For each key a value that is equal for equal keys and cheap to put into a set.

    A client can choose tuples of integers whose hashes all collide; then a set of many of them takes seconds.
    """
    return list(map(key_encoder(), keys)) if len(keys) > _FEW and type(keys[0]) is tuple else keys


def _slices(request: Get, read: Callable[[Get, int], Values], most_bytes: int) -> ValueSteps:
    keys, epochs, results = request.keys, list[int](), list[bytes | int | None]()
    committed = request.options.get("isolation") == _COMMITTED
    left, count = most_bytes, FIRST_KEYS
    while True:
        began = time.perf_counter()
        try:
            part = read(request._replace(keys=keys[len(results) : len(results) + count]), left)
        except TooLarge as exc:
            raise too_large(most_bytes) from exc
        if committed and epochs and part.epochs[0] != epochs[0]:
            yield None
            yield read(request, most_bytes)
            return
        epochs += part.epochs
        results += part.results
        if len(results) == len(keys):
            yield part._replace(epochs=tuple(epochs), results=tuple(results))
            return
        left -= sum(len(result) for result in part.results if isinstance(result, bytes))
        count = _next_count(count, time.perf_counter() - began)
        yield None


def _next_count(count: int, took_s: float) -> int:
    if took_s < QUICK_S:
        return count * 4
    return max(1, count // 2) if took_s > SLOW_S else count
