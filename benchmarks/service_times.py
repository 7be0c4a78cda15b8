"""The processor time of one request at an owner, at a proxy that asks other processes, and at a client.

Rules of this module: three processes of their own, each doing nothing else: a task manager (heap, no Spark), a proxy,
and the client, which is this one. What counts is the processor time of a process, not the time that passed, so that
other work of the machine changes little. Requests come over 64 connections, one at a time on each, as those of many
clients do; the asyncio client has 64 gets in flight.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.latencies import in_flight
from benchmarks.optional_packages import run_async
from benchmarks.raw_connection import RawConnection
from benchmarks.results import Figure, Findings
from benchmarks.rounds import say
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import QueryError
from qstate.protocol.messages import Get
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions

__all__ = ["run"]

CONNECTIONS = 64
KEYS_OF_A_BATCH = 100
HELD = 20_000


def run(bench: Bench) -> Findings:
    """Microseconds of processor time for each request."""
    requests = bench.sizes.served_requests
    findings = Findings()
    with ServedJob(pa.float64()) as job:
        job.hold({sensor_name(number): number * 0.5 for number in range(HELD)})
        owner = psutil.Process(job.pids[0])
        with QueryableStateClient(*job.proxy) as client:
            location = client.locate(JOB, STATE)
        with _proxy(location) as (address, proxy):
            for keys in (1, KEYS_OF_A_BATCH):
                count = max(CONNECTIONS, requests // keys)
                direct = partial(_ask, location.owners[0].address, location.owners[0].state_id, keys, count)
                (owned,) = _took_us(direct, count, owner)
                forwarded, again = _took_us(partial(_ask, address, (JOB, STATE), keys, count), count, proxy, owner)
                findings.figures += [
                    _figure(f"owner, a get of {keys}", owned),
                    _figure(f"proxy, a get of {keys} for an owner elsewhere", forwarded),
                    _figure(f"owner, a get of {keys} from a proxy", again),
                ]
            findings.figures += _client(job.proxy, requests, owner)
    return findings


def _figure(name: str, value: float) -> Figure:
    say(f"  {name}: {value:.2f} us of processor")
    return Figure(f"service time, {name}", "us of processor", [value])


def _took_us(work: Callable[[], None], count: int, *processes: psutil.Process) -> list[float]:
    """The processor time of each of these processes for one of so many requests; once to warm up."""
    work()
    before = [_processor_s(one) for one in processes]
    work()
    return [(_processor_s(one) - start) / count * 1e6 for one, start in zip(processes, before, strict=True)]


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _ask(address: tuple[str, int], target: bytes | tuple[str, str], keys: int, count: int) -> None:
    """Ask for `keys` keys `count` times: one request on each connection, then all answers."""
    names = cycle([sensor_name(number) for number in range(HELD)])
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(address)) for _ in range(CONNECTIONS)]
        for _ in range(-(-count // CONNECTIONS)):
            for number, connection in enumerate(connections):
                connection.send(Get(number + 1, 10_000, target, None, {}, tuple(islice(names, keys))))
            for connection in connections:
                connection.receive()


def _client(proxy: tuple[str, int], requests: int, owner: psutil.Process) -> Iterator[Figure]:
    """64 gets in flight, which the asyncio client puts into one request for each owner and turn of its loop."""

    async def measure() -> tuple[float, float]:
        async with await AsyncQueryableStateClient.connect(*proxy, direct=True) as client:

            async def get(key: str) -> float:
                view = await client.get(JOB, STATE, key)
                return float(view.value())

            names = cycle([sensor_name(number) for number in range(HELD)])
            seconds = max(0.05, requests / 100_000)
            await in_flight(get, names, CONNECTIONS, seconds)
            mine, theirs = time.process_time(), _processor_s(owner)
            found = await in_flight(get, names, CONNECTIONS, seconds)
            gets = max(1.0, found.calls_per_s * seconds)
            return (time.process_time() - mine) / gets * 1e6, (_processor_s(owner) - theirs) / gets * 1e6

    mine, theirs = run_async(measure())
    yield _figure("asyncio client, one of 64 gets that share a request", mine)
    yield _figure("owner, one of 64 gets that share a request", theirs)


@contextmanager
def _proxy(location: LocationTable) -> Iterator[tuple[tuple[str, int], psutil.Process]]:
    """A proxy of the job in a process of its own, which asks the owners over TCP."""
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        pickle.dump(location, process.stdin)
        process.stdin.flush()
        host, port = process.stdout.readline().decode().split()
        yield (host, int(port)), psutil.Process(process.pid)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30.0)


class _Fixed:
    """A location oracle that knows one state."""

    def __init__(self, location: LocationTable) -> None:
        self._location = location

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        reply(self._location)

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([self._location.state])


def _serve() -> None:
    """The proxy's process, until its standard input ends."""
    location = pickle.load(sys.stdin.buffer)
    with ClientProxy(EndpointOptions(bind="127.0.0.1", ports="0")) as proxy:
        proxy.set_location_oracle(JOB, _Fixed(location))
        print(*proxy.address, flush=True)
        ended = threading.Thread(target=sys.stdin.buffer.read)
        ended.start()
        ended.join()


if __name__ == "__main__":
    _serve()
