"""Gets over TLS, and gets that the audit log counts, against the same gets without.

Rules of this module: three jobs hold the same values, one task manager process each, and differ in one setting. Clients
ask the owner directly: one get at a time, and many in flight. The contenders take turns in every round. Besides the
times, the processor time of a get is measured, of client and server together: other work changes it less.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.latencies import Window, in_flight, one_at_a_time
from benchmarks.optional_packages import run_async
from benchmarks.results import Figure, Findings
from benchmarks.rounds import say, turns
from benchmarks.served_job import JOB, STATE, ServedJob
from qstate.runtime.client.async_client import AsyncQueryableStateClient
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.tls import ClientTls

__all__ = ["run"]

IN_FLIGHT = 64
_NEW = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=benchmark"


class Taken(NamedTuple):
    """What the gets of some seconds came to, and the processor time of each."""

    window: Window
    cpu_us: float


class Contender(NamedTuple):
    """A job to ask: its proxy, how to connect, and the process that answers."""

    proxy: tuple[str, int]
    tls: ClientTls | None
    server: psutil.Process

    def cpu_s(self) -> float:
        """The processor time of this process and of the server's so far."""
        times = self.server.cpu_times()
        return float(time.process_time() + times.user + times.system)


Contenders = dict[str, Contender]
Samples = dict[str, list[Taken]]


def run(bench: Bench) -> Findings:
    """Run both kinds of gets at all three jobs."""
    file = _certificate(bench.directory("certificate"))
    settings_of: dict[str, dict[str, Any]] = {
        "plain": {},
        "TLS": {"tls_certificate_file": file, "tls_ca_file": file},
        "audited": {"audit_log": True},
    }
    with ExitStack() as stack:
        contenders: Contenders = {}
        values = {f"key-{i}": i * 0.5 for i in range(bench.sizes.held_keys)}
        for name, settings in settings_of.items():
            job = stack.enter_context(ServedJob(pa.float64(), **settings))
            job.hold(values)
            tls = ClientTls(ca_file=file) if name == "TLS" else None
            contenders[name] = Contender(job.proxy, tls, psutil.Process(job.pids[0]))
        keys = list(values)
        random.Random(4).shuffle(keys)
        findings = Findings()
        findings.figures += _figures("one get at a time", _one_by_one(bench, contenders, cycle(keys)))
        findings.figures += _figures(f"{IN_FLIGHT} gets in flight", run_async(_many(bench, contenders, cycle(keys))))
        return findings


def _certificate(directory: Path) -> str:
    """A certificate for loopback that vouches for itself, with its key."""
    directory.mkdir(parents=True, exist_ok=True)
    file = str(directory / "server.pem")
    command = [*_NEW.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file, "-out", f"{file}.cert"]
    subprocess.run(command, check=True, capture_output=True)
    with Path(file).open("ab") as both:
        both.write(Path(f"{file}.cert").read_bytes())
    return file


def _one_by_one(bench: Bench, contenders: Contenders, keys: Iterator[str]) -> Samples:
    samples: Samples = {name: [] for name in contenders}
    with ExitStack() as stack:
        gets: dict[str, Callable[[str], Any]] = {}
        for name, contender in contenders.items():
            client = QueryableStateClient(*contender.proxy, direct=True, tls=contender.tls)
            gets[name] = _value_from(stack.enter_context(client))
        for number, name in turns(list(contenders), rounds=bench.sizes.get_rounds + 1):
            before = contenders[name].cpu_s()
            window = one_at_a_time(gets[name], keys, bench.sizes.in_flight_s)
            _note(number, name, window, cpu_s=contenders[name].cpu_s() - before, bench=bench, samples=samples)
    return samples


async def _many(bench: Bench, contenders: Contenders, keys: Iterator[str]) -> Samples:
    samples: Samples = {name: [] for name in contenders}
    clients = {
        name: await AsyncQueryableStateClient.connect(*contender.proxy, direct=True, tls=contender.tls)
        for name, contender in contenders.items()
    }
    try:
        for number, name in turns(list(contenders), rounds=bench.sizes.get_rounds + 1):
            before = contenders[name].cpu_s()
            window = await in_flight(_value_soon_from(clients[name]), keys, IN_FLIGHT, bench.sizes.in_flight_s)
            _note(number, name, window, cpu_s=contenders[name].cpu_s() - before, bench=bench, samples=samples)
    finally:
        for client in clients.values():
            await client.close()
    return samples


def _note(number: int, name: str, window: Window, *, cpu_s: float, bench: Bench, samples: Samples) -> None:
    taken = Taken(window, cpu_s / (window.calls_per_s * bench.sizes.in_flight_s) * 1e6)
    say(
        f"  round {number}: {name}: {window.calls_per_s:,.0f} gets/s, p99 {window.p99_ms:.2f} ms, "
        f"{taken.cpu_us:.1f} us of processor time"
    )
    if number:
        samples[name].append(taken)


def _figures(what: str, samples: Samples) -> list[Figure]:
    """Those of each contender, and their ratios to the plain gets of the same round."""
    figures = []
    parts: dict[str, tuple[str, Callable[[Taken], float]]] = {
        "": ("gets/s", lambda taken: taken.window.calls_per_s),
        ", p99": ("ms", lambda taken: taken.window.p99_ms),
        ", processor time": ("us", lambda taken: taken.cpu_us),
    }
    for name, found in samples.items():
        for part, (unit, of) in parts.items():
            figures.append(Figure(f"{what}, {name}{part}", unit, list(map(of, found))))
            if name != "plain":
                ratios = [of(taken) / of(plain) for taken, plain in zip(found, samples["plain"], strict=True)]
                figures.append(Figure(f"{what}, {name} / plain{part}", "x", ratios))
    return figures


def _value_from(client: QueryableStateClient) -> Callable[[str], Any]:
    return lambda key: client.get(JOB, STATE, key).value()


def _value_soon_from(client: AsyncQueryableStateClient) -> Callable[[str], Coroutine[Any, Any, Any]]:
    async def get(key: str) -> Any:
        view = await client.get(JOB, STATE, key)
        return view.value()

    return get
