"""Gets over TLS, and gets that the audit log counts, against the same gets without.

Rules of this module: three jobs hold the same values, one task manager process each, and differ in one setting. Clients
ask the owner directly: one get at a time, and many in flight. The contenders take turns in every round.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

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

Windows = dict[str, list[Window]]


def run(bench: Bench) -> Findings:
    """Run both kinds of gets at all three jobs."""
    file = _certificate(bench.directory("certificate"))
    settings_of: dict[str, dict[str, Any]] = {
        "plain": {},
        "TLS": {"tls_certificate_file": file, "tls_ca_file": file},
        "audited": {"audit_log": True},
    }
    with ExitStack() as stack:
        places: dict[str, tuple[tuple[str, int], ClientTls | None]] = {}
        values = {f"key-{i}": i * 0.5 for i in range(bench.sizes.held_keys)}
        for name, settings in settings_of.items():
            job = stack.enter_context(ServedJob(pa.float64(), **settings))
            job.hold(values)
            places[name] = job.proxy, ClientTls(ca_file=file) if name == "TLS" else None
        keys = list(values)
        random.Random(4).shuffle(keys)
        findings = Findings()
        findings.figures += _figures("one get at a time", _one_by_one(bench, places, cycle(keys)))
        findings.figures += _figures(f"{IN_FLIGHT} gets in flight", run_async(_many(bench, places, cycle(keys))))
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


def _one_by_one(bench: Bench, places: Any, keys: Iterator[str]) -> Windows:
    windows: Windows = {name: [] for name in places}
    with ExitStack() as stack:
        gets: dict[str, Callable[[str], Any]] = {}
        for name, (address, tls) in places.items():
            client = stack.enter_context(QueryableStateClient(*address, direct=True, tls=tls))
            gets[name] = _value_from(client)
        for number, name in turns(list(places), rounds=bench.sizes.get_rounds + 1):
            window = one_at_a_time(gets[name], keys, bench.sizes.in_flight_s)
            say(f"  round {number}: {name}: {window.calls_per_s:,.0f} gets/s, p99 {window.p99_ms:.2f} ms")
            if number:
                windows[name].append(window)
    return windows


async def _many(bench: Bench, places: Any, keys: Iterator[str]) -> Windows:
    windows: Windows = {name: [] for name in places}
    clients = {
        name: await AsyncQueryableStateClient.connect(*address, direct=True, tls=tls)
        for name, (address, tls) in places.items()
    }
    try:
        for number, name in turns(list(places), rounds=bench.sizes.get_rounds + 1):
            window = await in_flight(_value_soon_from(clients[name]), keys, IN_FLIGHT, bench.sizes.in_flight_s)
            say(f"  round {number}: {name}: {window.calls_per_s:,.0f} gets/s, p99 {window.p99_ms:.2f} ms")
            if number:
                windows[name].append(window)
    finally:
        for client in clients.values():
            await client.close()
    return windows


def _figures(what: str, windows: Windows) -> list[Figure]:
    """Those of each contender, and its ratio to the plain gets of the same round."""
    figures = []
    for name, found in windows.items():
        figures.append(Figure(f"{what}, {name}", "gets/s", [window.calls_per_s for window in found]))
        figures.append(Figure(f"{what}, {name}, p99", "ms", [window.p99_ms for window in found]))
        if name != "plain":
            pairs = list(zip(found, windows["plain"], strict=True))
            ratios = [window.calls_per_s / plain.calls_per_s for window, plain in pairs]
            figures.append(Figure(f"{what}, {name} / plain", "x gets/s", ratios))
            figures.append(
                Figure(f"{what}, {name} / plain, p99", "x", [window.p99_ms / plain.p99_ms for window, plain in pairs])
            )
    return figures


def _value_from(client: QueryableStateClient) -> Callable[[str], Any]:
    return lambda key: client.get(JOB, STATE, key).value()


def _value_soon_from(client: AsyncQueryableStateClient) -> Callable[[str], Coroutine[Any, Any, Any]]:
    async def get(key: str) -> Any:
        view = await client.get(JOB, STATE, key)
        return view.value()

    return get
