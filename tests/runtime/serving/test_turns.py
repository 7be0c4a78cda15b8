"""Laws of turns: a connection with many calls does not delay the others for long."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from qstate.protocol.connection import Answer
from qstate.protocol.messages import Failure
from qstate.runtime.serving.client_connection import Call
from qstate.runtime.serving.sharing.turns import TURN_BYTES, TURN_S, Turns


class Sender:
    """The part of a connection and its channel that turns use."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.calls: deque[Call] = deque()
        self.queued = False
        self.slow = False
        self.log = log

    def may_answer(self) -> bool:
        return True

    def charge(self, seconds: float) -> None:
        assert seconds >= 0.0

    def send_now(self, data: bytes) -> None:
        self.log.append(f"{self.name} gets {len(data)} bytes")


class Asked:
    """The part of a call that turns use."""

    def __init__(self, connection: Sender, size: int = 1) -> None:
        self.connection = connection
        self.size = size
        self.received_at = 0.0
        self.steps = None

    def encode(self, answer: Answer) -> bytes:
        return b"x" * self.size

    def sent(self) -> None:
        self.connection.log.append(f"{self.connection.name} is answered")


def played(calls: dict[str, list[int]], each_s: float, slow_s: float = 0.0) -> list[str]:
    """The log of several connections whose calls have these sizes, all wait from the start, and take `each_s`.

    Calls of connections that are called slow take `slow_s`.
    """
    now, log, asked = [100.0], list[str](), list[Any]()

    def answer(call: Call, at: float) -> Answer:
        now[0] += slow_s if call.connection.name.startswith("slow") else each_s  # type: ignore[attr-defined]
        return Failure(1, 1, {})

    turns = Turns(lambda: now[0], answer)
    for name, sizes in calls.items():
        sender = Sender(name, log)
        asked += [Asked(sender, size) for size in sizes]
    for call in asked:
        turns.add(cast(Call, call))
    turns.execute()
    assert not turns.connections and not any(call.connection.calls for call in asked)
    return [line for line in log if "gets" in line]


def test_answers_of_one_turn_are_sent_together() -> None:
    assert played({"one": [1] * 10, "other": [1]}, TURN_S / 100) == ["one gets 10 bytes", "other gets 1 bytes"]


def test_turn_ends_when_its_time_is_over_and_others_come_first() -> None:
    found = played({"one": [1] * 6, "other": [1]}, TURN_S / 2)
    assert found == ["one gets 2 bytes", "other gets 1 bytes", "one gets 2 bytes", "one gets 2 bytes"]


def test_turn_ends_when_its_answers_are_large() -> None:
    found = played({"one": [TURN_BYTES + 1] * 2, "other": [1]}, TURN_S / 100)
    assert found == [f"one gets {TURN_BYTES + 1} bytes", "other gets 1 bytes", f"one gets {TURN_BYTES + 1} bytes"]


def test_call_that_takes_long_ends_the_turn_after_it() -> None:
    found = played({"one": [1, 1], "other": [1]}, 10 * TURN_S)
    assert found == ["one gets 1 bytes", "other gets 1 bytes", "one gets 1 bytes"]


def test_slow_connections_share_half_of_the_time() -> None:
    calls = {f"slow {number}": [1] * 3 for number in range(3)} | {"quick": [1] * 60}
    found = played(calls, TURN_S / 2, 20 * TURN_S)
    # Of each connection the first turn shows what it is. Then as much time as a slow turn takes goes to quick ones.
    slow = [line.startswith("slow") for line in found]
    assert slow[:5] == [True, True, True, False, True]
    assert slow[5:26] == [False] * 20 + [True]
