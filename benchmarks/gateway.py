"""The gateway beside the native protocol: gets over HTTP, batches of them, changes, a thousand streams of one key.

Rules of this module: one job (heap, one task manager without Spark), one gateway process, and the clients in this
process, all on one machine. The contenders take turns in every round. `http_connection` keeps the cost of the HTTP
clients low, so that the gateway is what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any
from urllib.request import urlopen

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.http_connection import HttpConnection, StreamConnection
from benchmarks.latencies import Window, in_flight, percentile
from benchmarks.optional_packages import missing, run_async
from benchmarks.results import Figure, Findings
from benchmarks.rounds import say, turns
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.runtime.client.async_client import AsyncQueryableStateClient

__all__ = ["run"]

IN_FLIGHT = 64
BATCH = 100
STREAMS = 1000
COMMITS = 50
PATH = f"/v1/jobs/{JOB}/states/{STATE}"
_Get = Callable[[Any], Coroutine[Any, Any, Any]]
_Commit = Callable[[], Coroutine[Any, Any, float]]
#: What is asked, for one contender: how many at a time, and how many keys each.
_KINDS = {"one get at a time": (1, 1), f"{IN_FLIGHT} gets in flight": (IN_FLIGHT, 1), "batches of 100": (1, BATCH)}


def run(bench: Bench) -> Findings:
    """All kinds of gets, and the streams."""
    if reason := missing("starlette", "uvicorn"):
        say(f"  left out: {reason}")
        return Findings()
    with ServedJob(pa.float64()) as job:
        values = {f"key-{i}": i * 0.5 for i in range(bench.sizes.held_keys)}
        job.hold(values)
        job.finalize()
        keys = list(values)
        random.Random(4).shuffle(keys)
        with _gateway(job.proxy) as address:
            findings = Findings()
            for what, (tasks, batch) in _KINDS.items():
                windows = run_async(_gets(bench, job.proxy, address, cycle(keys), tasks=tasks, batch=batch))
                findings.figures += _figures(what, windows)
            streams = STREAMS if bench.sizes.name != "tiny" else 20
            findings.figures += run_async(_changes(bench, job, address, values))
            findings.figures += run_async(_streams(job, address, keys[0], streams))
        return findings


@contextmanager
def _gateway(proxy: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """A gateway process on a free port."""
    command = [sys.executable, "-m", "qstate.cli.main", "gateway", "--port", "0", "--proxy", "{}:{}".format(*proxy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            url = started.stdout.readline().split()[1].rstrip(";")
            host, _, port = url.rpartition("/")[2].rpartition(":")
            _await_answer(f"{url}/healthz")
            yield host, int(port)
        finally:
            started.terminate()


def _await_answer(url: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with urlopen(url):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


async def _gets(
    bench: Bench, proxy: tuple[str, int], gateway: tuple[str, int], keys: Iterator[str], *, tasks: int, batch: int
) -> dict[str, list[Window]]:
    """The windows of each contender, in turns."""
    owner = await AsyncQueryableStateClient.connect(*proxy, direct=True)
    through = await AsyncQueryableStateClient.connect(*proxy, direct=False)
    connections = [await HttpConnection.to(gateway) for _ in range(tasks)]
    try:
        contenders = {
            "native, owner": _native(owner, batch),
            "native, proxy": _native(through, batch),
            "REST": _rest(connections, batch),
        }
        arguments: Iterator[Any] = keys if batch == 1 else iter(lambda: list(islice(keys, batch)), None)
        windows: dict[str, list[Window]] = {name: [] for name in contenders}
        for number, name in turns(list(contenders), rounds=bench.sizes.get_rounds + 1):
            window = await in_flight(contenders[name], arguments, tasks, bench.sizes.in_flight_s)
            say(f"  round {number}: {name}: {window.calls_per_s * batch:,.0f} keys/s, p99 {window.p99_ms:.2f} ms")
            if number:
                windows[name].append(Window(window.calls_per_s * batch, window.p50_ms, window.p99_ms))
        return windows
    finally:
        for connection in connections:
            connection.close()
        await owner.close()
        await through.close()


def _native(client: AsyncQueryableStateClient, batch: int) -> _Get:
    async def get(key: str) -> Any:
        return (await client.get(JOB, STATE, key)).value()

    async def get_many(keys: list[str]) -> Any:
        return [view.value() for view in (await client.get_many(JOB, STATE, keys)).values()]

    return get if batch == 1 else get_many


def _rest(connections: list[HttpConnection], batch: int) -> _Get:
    free = list(connections)

    async def ask(request: bytes) -> Any:
        connection = free.pop()
        try:
            return json.loads(await connection.body(request))
        finally:
            free.append(connection)

    async def get(key: str) -> Any:
        return (await ask(f"GET {PATH}/value?key={key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))["value"]

    async def get_many(keys: list[str]) -> Any:
        body = json.dumps({"keys": keys})
        head = f"POST {PATH}/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        found = await ask(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return [one["value"] for one in found["results"]]

    return get if batch == 1 else get_many


async def _changes(bench: Bench, job: ServedJob, gateway: tuple[str, int], values: dict[str, float]) -> list[Figure]:
    """Changes per second of one subscriber to all keys, from the report of a commit of all of them."""
    client = await AsyncQueryableStateClient.connect(*job.proxy)
    contenders = {"native": partial(_followed, client, len(values)), "REST": partial(_streamed, gateway)}
    rates: dict[str, list[float]] = {name: [] for name in contenders}

    async def commit() -> float:
        await asyncio.to_thread(job.hold, values)
        began = time.perf_counter()
        await asyncio.to_thread(job.finalize)
        return began

    try:
        for number, name in turns(list(contenders), rounds=bench.sizes.get_rounds + 1):
            began = await contenders[name](commit)
            if number:
                rates[name].append(len(values) / (time.perf_counter() - began))
    finally:
        await client.close()
    ratios = [rest / native for rest, native in zip(rates["REST"], rates["native"], strict=True)]
    for name, found in rates.items():
        say(f"  changes, {name}: {percentile(found, 50):,.0f}/s")
    return [
        Figure("changes to one subscriber, native", "changes/s", rates["native"]),
        Figure("changes to one subscriber, server-sent events", "changes/s", rates["REST"]),
        Figure("changes to one subscriber, server-sent events / native", "x", ratios),
    ]


async def _followed(client: AsyncQueryableStateClient, count: int, commit: _Commit) -> float:
    """When the commit was reported, of which all changes have come."""
    seen, began = 0, 0.0
    async with client.subscribe(JOB, STATE) as batches:
        async for batch in batches:
            if batch.snapshot and batch.token is not None and not began:
                began = await commit()
            elif not batch.snapshot:
                seen += len(batch.changes)
                if seen >= count:
                    break
    return began


async def _streamed(gateway: tuple[str, int], commit: _Commit) -> float:
    """The same over HTTP. The last part of an event alone has an id, which ends it but for a thousand changes."""
    arrived: asyncio.Queue[None] = asyncio.Queue()
    request = f"GET {PATH}/changes HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    stream = await StreamConnection.to(gateway, request, b"event: snapshot\nid: ", arrived)
    try:
        await _take(arrived, 1)
        stream.follow(b"event: changes\nid: ", arrived)
        began = await commit()
        await _take(arrived, 1)
        return began
    finally:
        stream.close()


async def _streams(job: ServedJob, gateway: tuple[str, int], key: str, count: int) -> list[Figure]:
    """From the report of a commit to the arrival of its change at all of so many streams."""
    request = f"GET {PATH}/changes?key={key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    begun: asyncio.Queue[None] = asyncio.Queue()
    arrived: asyncio.Queue[None] = asyncio.Queue()
    streams = [await StreamConnection.to(gateway, request, b"event: snapshot", begun) for _ in range(count)]
    try:
        await _take(begun, count)
        for stream in streams:
            stream.follow(b"event: changes", arrived)
        all_ms = []
        for number in range(COMMITS):
            await asyncio.to_thread(job.hold, {key: float(number)})
            began = time.perf_counter()
            await asyncio.to_thread(job.finalize)
            await _take(arrived, count)
            all_ms.append((time.perf_counter() - began) * 1000)
    finally:
        for stream in streams:
            stream.close()
    say(
        f"  {count} streams: p50 {percentile(all_ms, 50):.1f} ms, p99 {percentile(all_ms, 99):.1f} ms until all have it"
    )
    return [Figure(f"{count} streams, commit to the arrival at all", "ms", all_ms)]


async def _take(queue: asyncio.Queue[None], count: int) -> None:
    for _ in range(count):
        await asyncio.wait_for(queue.get(), 60)


def _figures(what: str, windows: dict[str, list[Window]]) -> list[Figure]:
    figures = []
    for name, found in windows.items():
        figures.append(Figure(f"{what}, {name}", "keys/s", [one.calls_per_s for one in found]))
        figures.append(Figure(f"{what}, {name}, p99", "ms", [one.p99_ms for one in found]))
        if name != "REST":
            ratios = [rest.calls_per_s / one.calls_per_s for rest, one in zip(windows["REST"], found, strict=True)]
            figures.append(Figure(f"{what}, REST / {name}", "x", ratios))
    return figures
