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
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.hostile_runs import LARGE_BYTES, attacked, attackers
from benchmarks.hostile_server import SMALL_KEYS, TOKEN, large_key, small_key
from benchmarks.latencies import percentile
from benchmarks.rounds import interleaved
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.client import AsyncQueryableStateClient

__all__ = ["AttackedJob"]

ROUNDS = 3
#: Of a round.
SECONDS = 4.0
LARGE_VALUES = 4
#: Job -> its settings.
JOBS: dict[str, dict[str, Any]] = {"without quota": {"query_quota": 0.0}, "with quota": {}}


async def _owner_port(host: str, port: int) -> int:
    async with await AsyncQueryableStateClient.connect(host, port, token=TOKEN) as client:
        return (await client.locate(JOB, STATE)).owners[0].port


class AttackedJob:
    """A job, and another server beside it. Use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        jobs = {name: ServedJob(pa.binary(), auth_token=TOKEN.decode(), **settings) for name, settings in JOBS.items()}
        self._jobs = {name: self._stack.enter_context(job) for name, job in jobs.items()}
        self._beside = self._stack.enter_context(attacked("heap", directory / "beside"))
        self._small = {small_key(number): b"x" * 20 for number in range(SMALL_KEYS)}
        for job in self._jobs.values():
            job.hold({large_key(number): bytes(LARGE_BYTES) for number in range(LARGE_VALUES)})
            job.finalize()
        self._ports = {name: (job.proxy[1], asyncio.run(_owner_port(*job.proxy))) for name, job in self._jobs.items()}

    def rows_per_s(self, attack: str, connections: int) -> dict[str, float]:
        """The median rows/s without an attack (`quiet`), beside one (`beside`), and of each job under one."""

        def measured(job: ServedJob, begin: Callable[[], AbstractContextManager[object]]) -> Callable[[], float]:
            def measure() -> float:
                with begin():
                    return self._rows_per_s(job)

            return measure

        first = next(iter(self._jobs.values()))
        contenders = {
            "quiet": measured(first, nullcontext),
            "beside": measured(first, lambda: self._beside.under(attack, connections)),
        }
        for name, job in self._jobs.items():
            attack_it = partial(attackers, attack, connections, (JOB, STATE, STATE), self._ports[name])
            contenders[name] = measured(job, attack_it)
        return {name: percentile(rates, 50) for name, rates in interleaved(contenders, rounds=ROUNDS).items()}

    def _rows_per_s(self, job: ServedJob) -> float:
        epochs, began = 0, time.monotonic()
        while (took := time.monotonic() - began) < SECONDS:
            job.hold(self._small)
            job.finalize()
            epochs += 1
        return epochs * len(self._small) / took

    def __enter__(self) -> AttackedJob:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
