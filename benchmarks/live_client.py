"""The other process of P7 and P8: clients that ask while a pipeline runs, controlled over standard input.

Rules of this module: run as `python -m benchmarks.live_client HOST PORT JOB STATE KEYS`, where KEYS is a number of
sensors. One JSON object per line in, one out; it ends with its input. `LiveClient` is the other end.

Elsewhere it would have processors of its own. Here it gets one at once, where the system lets it (real-time
priority): what it burns is part of what the pipeline loses, but how long the kernel lets a client wait for a processor
is not the server's latency.

    {"load": gets per second, "direct": bool}    gets at that rate, collected per turn of the loop; answers {}
    {"stop": true}                               ends the load; answers {"gets": n, "seconds": s}
    {"probe": gets per second, "seconds": s}     one get at a time, paced; answers {"latencies_us": [...]}
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.inputs import sensor_name
from benchmarks.optional_packages import run_async
from qstate.runtime.client.async_client import AsyncQueryableStateClient
from qstate.runtime.client.sync_client import QueryableStateClient

__all__ = ["LiveClient"]

#: How often the load is topped up. The gets of one turn of the loop travel together.
TICK_S = 0.01


class LiveClient:
    """The process, as the benchmark sees it. Use it as a context manager."""

    def __init__(self, proxy: tuple[str, int], job: str, state: str, keys: int) -> None:
        arguments = [proxy[0], str(proxy[1]), job, state, str(keys)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.live_client", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            text=True,
        )

    def start_load(self, gets_per_s: int, *, direct: bool) -> None:
        """Begin to get at this rate."""
        self._call({"load": gets_per_s, "direct": direct})

    def stop_load(self) -> float:
        """End the load; gives the gets per second that were answered."""
        done = self._call({"stop": True})
        return float(done["gets"] / done["seconds"])

    def begin_probe(self, gets_per_s: int, seconds: float) -> None:
        """Begin to take times; `end_probe` waits for them."""
        self._send({"probe": gets_per_s, "seconds": seconds})

    def end_probe(self) -> list[float]:
        """The latencies in microseconds."""
        latencies: list[float] = self._receive()["latencies_us"]
        return latencies

    def _call(self, request: dict[str, Any]) -> Any:
        self._send(request)
        return self._receive()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client process ended")
        return json.loads(line)

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class _Asker:
    """The process's own side."""

    def __init__(self, proxy: tuple[str, int], target: tuple[str, str], keys: int) -> None:
        self._proxy = proxy
        self._target = target
        self._random = random.Random(7)
        self._keys = [sensor_name(number) for number in range(keys)]
        # In an order made beforehand: choosing a key is no part of getting its value.
        self._load_keys = cycle(self._random.sample(self._keys, keys))

    async def serve(self) -> None:
        """Do what each line says, until there is none."""
        loop = asyncio.get_running_loop()
        load: asyncio.Task[dict[str, float]] | None = None
        ending = asyncio.Event()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            answer: dict[str, Any] = {}
            if "load" in request:
                ending.clear()
                load = asyncio.create_task(self._load(request["load"], request["direct"], ending))
            elif "stop" in request and load is not None:
                ending.set()
                answer = dict(await load)
            elif "probe" in request:
                answer = await loop.run_in_executor(None, self._probe, request["probe"], request["seconds"])
            print(json.dumps(answer), flush=True)

    async def _load(self, gets_per_s: int, direct: bool, ending: asyncio.Event) -> dict[str, float]:
        client = await AsyncQueryableStateClient.connect(*self._proxy, direct=direct)
        began, asked, answered = time.perf_counter(), 0, 0
        async with client:
            while not ending.is_set():
                due = int((time.perf_counter() - began) * gets_per_s) - asked
                asked += due
                # A task for each get would take as much of the processors as the job does to answer it.
                for future in [client.submit(*self._target, key) for key in islice(self._load_keys, due)]:
                    await future
                answered += due
                await asyncio.sleep(TICK_S)
        return {"gets": answered, "seconds": time.perf_counter() - began}

    def _probe(self, gets_per_s: int, seconds: float) -> dict[str, list[float]]:
        taken = []
        clock, pause = time.perf_counter, 1 / gets_per_s
        with QueryableStateClient(*self._proxy, direct=True) as client:
            client.get(*self._target, self._keys[0])
            until = clock() + seconds
            while (began := clock()) < until:
                client.get(*self._target, self._random.choice(self._keys))
                took = clock() - began
                taken.append(took * 1e6)
                time.sleep(max(0.0, pause - took))
        return {"latencies_us": taken}


def main() -> None:
    """Serve standard input."""
    if hasattr(os, "SCHED_RR"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    host, port, job, state, keys = sys.argv[1:]
    run_async(_Asker((host, int(port)), (job, state), int(keys)).serve())


if __name__ == "__main__":
    main()
