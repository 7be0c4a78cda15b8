"""The other process of P15: subscribers of a job, controlled over standard input.

Rules of this module: run as `python -m benchmarks.subscriber HOST PORT JOB STATE`. One JSON object per line in, one
out; it ends with its input. `Subscribers` is the other end. All subscriptions of a process share one asyncio client.

    {"follow": n, "keys": [...] or null, "from_epoch": e}   begins n subscriptions, of one key each or of all keys;
                                                            answers {}
    {"until": epoch}    waits until each has everything up to the epoch; answers {"changes": n, "arrivals": {epoch:
                        [seconds]}}: the changes since the last call, and when each epoch came, by `time.time`
    {"stop": true}      ends them; answers {}
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.optional_packages import run_async
from qstate.client import AsyncQueryableStateClient

__all__ = ["Subscribers"]


class Subscribers:
    """The process, as the benchmark sees it. Use it as a context manager."""

    def __init__(self, proxy: tuple[str, int], job: str, state: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.subscriber", proxy[0], str(proxy[1]), job, state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            text=True,
        )

    def follow(self, count: int, keys: list[str] | None, from_epoch: int) -> None:
        """Begin so many subscriptions."""
        self._call({"follow": count, "keys": keys, "from_epoch": from_epoch})

    def until(self, epoch: int) -> tuple[int, dict[int, list[float]]]:
        """Wait for an epoch. The changes since the last call, and when each epoch arrived."""
        answer = self._call({"until": epoch})
        return answer["changes"], {int(epoch): times for epoch, times in answer["arrivals"].items()}

    def stop(self) -> None:
        """End the subscriptions."""
        self._call({"stop": True})

    def __enter__(self) -> Subscribers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _call(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of the subscribers has ended")
        found: dict[str, Any] = json.loads(answer)
        return found


class _Following:
    """The subscriptions of the process."""

    def __init__(self, client: AsyncQueryableStateClient, job: str, state: str) -> None:
        self._client = client
        self._names = (job, state)
        self._tasks: list[asyncio.Task[None]] = []
        self._complete: list[int] = []
        self._changes = 0
        self._arrivals: defaultdict[int, list[float]] = defaultdict(list)
        self._moved = asyncio.Condition()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "follow" in question:
            keys, first = question["keys"], question["from_epoch"]
            self._complete = [first - 1] * question["follow"]
            self._tasks = [
                asyncio.create_task(self._follow(number, None if keys is None else keys[number % len(keys)], first))
                for number in range(question["follow"])
            ]
            return {}
        if "until" in question:
            async with self._moved:
                await self._moved.wait_for(lambda: min(self._complete) >= question["until"] or self._failed())
            for task in self._tasks:
                if task.done():
                    task.result()
            found = {"changes": self._changes, "arrivals": dict(self._arrivals)}
            self._changes = 0
            self._arrivals.clear()
            return found
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return {}

    def _failed(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def _follow(self, number: int, key: str | None, first: int) -> None:
        async for batch in self._client.subscribe(*self._names, key, from_epoch=first, progress_s=30.0):
            self._changes += len(batch)
            if batch.changes:
                self._arrivals[batch.epoch].append(time.time())
            self._complete[number] = batch.complete
            async with self._moved:
                self._moved.notify_all()


async def _serve(host: str, port: int, job: str, state: str) -> None:
    async with await AsyncQueryableStateClient.connect(host, port) as client:
        following = _Following(client, job, state)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await following.answer(json.loads(line))), flush=True)
        await following.answer({"stop": True})


if __name__ == "__main__":
    run_async(_serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
