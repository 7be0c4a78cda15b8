"""What clients that mean it ill cost a job: rows/s of its epochs.

Rules of this module: one task manager (heap) without Spark, as in P15, whose epochs change all its small keys; it also
holds a few large values. The attackers are on the same machine, so what they burn is part of what the job loses. So
the same attack on another server, beside the job, is measured too: the difference is what the attack costs through the
job's own ports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import pyarrow as pa

from benchmarks.hostile_runs import LARGE_BYTES, attacked, attackers
from benchmarks.hostile_server import SMALL_KEYS, large_key, small_key
from benchmarks.latencies import percentile
from benchmarks.rounds import interleaved
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.client import AsyncQueryableStateClient

__all__ = ["AttackedJob"]

ROUNDS = 3
#: Of a round.
SECONDS = 4.0
LARGE_VALUES = 4


async def _owner_port(host: str, port: int) -> int:
    async with await AsyncQueryableStateClient.connect(host, port) as client:
        return (await client.locate(JOB, STATE)).owners[0].port


class AttackedJob:
    """A job, and another server beside it. Use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        self._job = self._stack.enter_context(ServedJob(pa.binary()))
        self._beside = self._stack.enter_context(attacked("heap", directory / "beside"))
        self._small = {small_key(number): b"x" * 20 for number in range(SMALL_KEYS)}
        self._job.hold({large_key(number): bytes(LARGE_BYTES) for number in range(LARGE_VALUES)})
        self._job.finalize()
        self._ports = (self._job.proxy[1], asyncio.run(_owner_port(*self._job.proxy)))

    def rows_per_s(self, attack: str, connections: int) -> dict[str, float]:
        """The median rows/s without an attack (`quiet`), beside one (`beside`) and under one (`attacked`)."""

        def measured(begin: Callable[[], AbstractContextManager[object]]) -> Callable[[], float]:
            def measure() -> float:
                with begin():
                    return self._rows_per_s()

            return measure

        contenders = {
            "quiet": measured(nullcontext),
            "beside": measured(lambda: self._beside.under(attack, connections)),
            "attacked": measured(lambda: attackers(attack, connections, (JOB, STATE, STATE), self._ports)),
        }
        return {name: percentile(rates, 50) for name, rates in interleaved(contenders, rounds=ROUNDS).items()}

    def _rows_per_s(self) -> float:
        epochs, began = 0, time.monotonic()
        while (took := time.monotonic() - began) < SECONDS:
            self._job.hold(self._small)
            self._job.finalize()
            epochs += 1
        return epochs * len(self._small) / took

    def __enter__(self) -> AttackedJob:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
