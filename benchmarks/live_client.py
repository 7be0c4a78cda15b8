"""The other process of P7, P8 and P8b: clients that ask while a pipeline runs, controlled over standard input.

Rules of this module: run as `python -m benchmarks.live_client HOST PORT JOB STATE KEYS`, where KEYS is a number of
sensors. One JSON object per line in, one out; it ends with its input. `LiveClient` is the other end.

It has the priority of any program, so what it waits for a processor counts, as it does for its users.

    {"load": gets per second, "direct": bool}    gets at that rate, collected per turn of the loop; answers {}
    {"stop": true}                               ends the load; answers {"gets": n, "seconds": s}
    {"ask": gets in flight, "direct": bool or null, "seconds": s}
                                                 gets as fast as answers come, decoded: one at a time with the client
                                                 that blocks, more with the asyncio client; answers a `Window`
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.inputs import sensor_name
from benchmarks.latencies import Window, in_flight, one_at_a_time
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

    def ask(self, gets_in_flight: int, seconds: float, *, direct: bool | None) -> Window:
        """Get for so long."""
        return Window(**self._call({"ask": gets_in_flight, "direct": direct, "seconds": seconds}))

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
        self._keys = [sensor_name(number) for number in range(keys)]
        # In an order made beforehand: choosing a key is no part of getting its value.
        self._asked_keys = cycle(random.Random(7).sample(self._keys, keys))

    async def serve(self) -> None:
        """Execute the commands on standard input until it ends."""
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
            elif "ask" in request:
                answer = asdict(await self._ask(**request))
            print(json.dumps(answer), flush=True)

    async def _load(self, gets_per_s: int, direct: bool, ending: asyncio.Event) -> dict[str, float]:
        client = await AsyncQueryableStateClient.connect(*self._proxy, direct=direct)
        began, asked, answered = time.perf_counter(), 0, 0
        async with client:
            while not ending.is_set():
                due = int((time.perf_counter() - began) * gets_per_s) - asked
                asked += due
                # A task for each get would take as much of the processors as the job does to answer it.
                for future in [client.submit(*self._target, key) for key in islice(self._asked_keys, due)]:
                    await future
                answered += due
                await asyncio.sleep(TICK_S)
        return {"gets": answered, "seconds": time.perf_counter() - began}

    async def _ask(self, ask: int, direct: bool | None, seconds: float) -> Window:
        if ask > 1:
            return await self._in_flight(direct, ask, seconds)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._one_at_a_time, direct, seconds)

    def _one_at_a_time(self, direct: bool | None, seconds: float) -> Window:
        with QueryableStateClient(*self._proxy, direct=direct) as client:

            def get(key: str) -> Any:
                return client.get(*self._target, key).value()

            get(self._keys[0])
            return one_at_a_time(get, self._asked_keys, seconds)

    async def _in_flight(self, direct: bool | None, tasks: int, seconds: float) -> Window:
        async with await AsyncQueryableStateClient.connect(*self._proxy, direct=direct) as client:

            async def get(key: str) -> Any:
                return (await client.get(*self._target, key)).value()

            await get(self._keys[0])
            return await in_flight(get, self._asked_keys, tasks, seconds)


def main() -> None:
    """Serve standard input."""
    host, port, job, state, keys = sys.argv[1:]
    run_async(_Asker((host, int(port)), (job, state), int(keys)).serve())


if __name__ == "__main__":
    main()
