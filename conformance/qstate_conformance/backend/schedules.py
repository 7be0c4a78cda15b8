"""Schedules that provoke races: a read that stops half-way until the operator has changed something, and many that run.

Rules of this module: it knows threads and no backend's insides. A read is stopped where user code runs in the reader's
thread (a serializer, an aggregate function); a backend that runs none there has its read done before the change.
Every wait is bounded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

from qstate.backends import ReadResult, StateReader
from qstate.descriptors import AggregateFunction, StateDescriptor
from qstate.keys import Key
from qstate.serializers import MessagePackSerializer, Serializer

__all__ = [
    "PAUSE",
    "WAIT_S",
    "PausingMean",
    "PausingSerializer",
    "Readers",
    "pausing",
    "read_while",
    "tiny_switch_interval",
]

WAIT_S = 30.0


class Pause:
    """A point at which the reading thread waits until the operator's thread has done something."""

    def __init__(self) -> None:
        self._reader: int | None = None
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def arm(self) -> None:
        """Make the calling thread stop at its next pause, once."""
        self._reader = threading.get_ident()

    def here(self) -> None:
        if threading.get_ident() == self._reader:
            self._reader = None
            self.reached.set()
            assert self.go_on.wait(WAIT_S), "the operator never went on"


class _Current:
    """The pause of the read that runs; serializers and functions are shared, so it cannot be theirs."""

    def __init__(self) -> None:
        self.pause = Pause()

    def here(self) -> None:
        self.pause.here()


PAUSE = _Current()


class PausingSerializer(Serializer):
    """MessagePack of a list or dict, element after element, with a pause after the first."""

    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        dump, parts = MessagePackSerializer().dumps, []
        for element in value.items() if isinstance(value, dict) else value:
            parts.append(dump(list(element) if isinstance(value, dict) else element))
            PAUSE.here()
        return bytes([0x90 | len(parts)]) + b"".join(parts)

    def loads(self, data: bytes) -> Any:
        found = MessagePackSerializer().loads(data)
        return dict(found) if found and isinstance(found[0], list) else found


class PausingMean(AggregateFunction[float, list[float], float]):
    """A mean whose result takes its time."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[float]) -> float:
        total = accumulator[0]
        PAUSE.here()
        return total / accumulator[1]

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1]]


@contextmanager
def pausing() -> Iterator[Pause]:
    """A fresh pause. A thread that waits at it when the block ends continues."""
    PAUSE.pause = pause = Pause()
    try:
        yield pause
    finally:
        pause.go_on.set()


def read_while(
    reader: StateReader, descriptor: StateDescriptor, keys: Sequence[Key], change: Callable[[], object]
) -> ReadResult:
    """A read that `change` interrupts, if user code runs in it at all."""

    def read() -> ReadResult:
        pause.arm()
        return reader.get(descriptor, None, keys)

    with ThreadPoolExecutor(1) as pool, pausing() as pause:
        answer: Future[ReadResult] = pool.submit(read)
        answer.add_done_callback(lambda _: pause.reached.set())
        assert pause.reached.wait(WAIT_S), "the read neither paused nor ended"
        change()
        pause.go_on.set()
        return answer.result(WAIT_S)


@contextmanager
def tiny_switch_interval() -> Iterator[None]:
    """Threads are switched as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Readers:
    """Threads that read again and again, from entering the block to its end; the first failure is raised there."""

    def __init__(self, *reads: Callable[[], None]) -> None:
        self._reads = reads
        self._counts = [0] * len(reads)
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(reads))]

    def _run(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                self._reads[number]()
                self._counts[number] += 1
        except BaseException as exc:
            self._failures.append(exc)

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def one_more(self) -> None:
        """Wait until every reader has another answer, so that a busy machine cannot starve them."""
        for number, thread in enumerate(self._threads):
            goal, deadline = self._counts[number] + 1, monotonic() + WAIT_S
            while self._counts[number] < goal and thread.is_alive():
                assert monotonic() < deadline, "a reader has had no answer for a long time"
                thread.join(0.001)

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        if self._failures and kind is None:
            raise self._failures[0]
        assert not any(thread.is_alive() for thread in self._threads), "a reader hangs"
