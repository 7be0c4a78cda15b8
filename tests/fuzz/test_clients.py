"""Whatever a server answers, both clients end each call in time, with a value or an error of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import QStateError
from qstate.protocol.codec import encode, frame
from tests.fuzz.frames import DAMAGES, Damage, streams
from tests.runtime.client.peer import CLOSE, Peer, Reply

#: `nightly` looks for twenty minutes, in parts as the fuzz of the server does.
EXAMPLES, PARTS = (settings().max_examples, 1) if settings().max_examples < 1000 else (20_000, 6)
TIMEOUT_S = 0.25
#: What a call may take beyond its deadline on a busy machine.
LATE_S = 5.0


class Liar:
    """Answers the first requests honestly, and then one with damaged bytes."""

    def __init__(self) -> None:
        self.honest_first = 0
        self.damages: list[Damage] = []
        self.junk: list[bytes] = []
        self.peer = Peer(self.script)

    def script(self, request: Any) -> Iterable[Reply]:
        if self.honest_first:
            self.honest_first -= 1
            return self.peer.honest(request)
        damages = iter(self.damages)
        answers = [frame(encode(reply)) for reply in self.peer.honest(request)]  # type: ignore[arg-type]
        return [*(damage.to(data) for data, damage in zip(answers, damages, strict=False)), *self.junk, CLOSE]


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    found = Liar()
    yield found
    found.peer.close()


def ends_as_it_may(call: Any) -> None:
    began = time.monotonic()
    try:
        call()
    except QStateError:
        """An error of the client's own."""
    assert time.monotonic() - began < TIMEOUT_S + LATE_S


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=EXAMPLES)
@given(
    damages=st.lists(DAMAGES, min_size=1, max_size=2),
    honest_first=st.integers(0, 2),
    junk=st.one_of(st.just([]), streams("server")),
    keys=st.integers(1, 3),
)
def test_any_answer_is_a_value_or_an_error(
    liar: Liar, part: int, *, damages: list[Damage], honest_first: int, junk: list[bytes], keys: int
) -> None:
    def prepare() -> None:
        liar.honest_first, liar.damages, liar.junk = honest_first, damages, junk

    asked = [f"key {number}" for number in range(keys)]
    prepare()
    with QueryableStateClient(*liar.peer.address, timeout_s=TIMEOUT_S) as client:
        ends_as_it_may(lambda: client.get_many("job", "state", asked))
        ends_as_it_may(lambda: client.states("job"))

    async def ask() -> None:
        async with await AsyncQueryableStateClient.connect(*liar.peer.address, timeout_s=TIMEOUT_S) as client:
            await client.get_many("job", "state", asked)

    prepare()
    ends_as_it_may(lambda: asyncio.run(ask()))
