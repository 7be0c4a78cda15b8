"""What clients that mean it ill cost the others: latency, failures and memory.

Rules of this module: one attack after the other, each on a server of its own, with a well-behaved client that asks one
key at a time beside it, and on a job. Attackers and server share the machine's processors, so the fair comparison is
the same attack on another server of the same machine. `python -m benchmarks.hostile [--seconds N] [--backend heap]
[--attack idle]` prints two tables of figures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.hostile_job import JOBS, AttackedJob
from benchmarks.hostile_runs import Seen, attacked

__all__ = ["main"]

#: Attack -> connections, or requests of the one connection.
ATTACKS = {
    "idle": 10_000,
    "slow_writers": 500,
    "half_frames": 200,
    "never_reads": 100,
    "pipelines": 100_000,
    "large_gets": 4,
    "handshakes": 500,
}
#: After an attack, so that the server has closed its connections and given freed memory back.
REST_S = 3.0


def main() -> None:
    """Run every attack and print a row for each."""
    parser = argparse.ArgumentParser(prog="benchmarks.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--backend", action="append", help="heap, rocksdb; may be given several times")
    parser.add_argument("--attack", action="append", help="only this one; may be given several times")
    options = parser.parse_args()
    attacks = {attack: count for attack, count in ATTACKS.items() if attack in (options.attack or ATTACKS)}
    heads = ("quiet", "beside", "attacked", "attacked, by way of the proxy", "failed", "MiB before, at most, after")
    print(f"| backend | attack | connections | {' | '.join(heads)} |")
    print("|---" * (3 + len(heads)) + "|")
    for backend in options.backend or ["heap", "rocksdb"]:
        for attack, count in attacks.items():
            with tempfile.TemporaryDirectory() as place:
                print(f"| {backend} | {attack} | {_row(Path(place), backend, attack, count, options.seconds)} |")
    print(f"\n| attack | rows/s quiet | beside | attacked {' | attacked '.join(JOBS)} |")
    print("|---" * (3 + len(JOBS)) + "|")
    with tempfile.TemporaryDirectory() as place, AttackedJob(Path(place)) as job:
        for attack, count in attacks.items():
            rates = job.rows_per_s(attack, count)
            print(f"| {attack} | {' | '.join(f'{rate:,.0f}' for rate in rates.values())} |", flush=True)


def _row(place: Path, backend: str, attack: str, count: int, seconds: float) -> str:
    """What a client of one server sees without an attack, beside one on another server, and under it."""
    with ExitStack() as stack:
        server, other = (stack.enter_context(attacked(backend, place / name)) for name in ("server", "other"))
        client, proxied = (stack.enter_context(server.client(direct=direct)) for direct in (None, False))
        quiet, before = server.seen(client, seconds / 2), server.resident_mib
        with other.under(attack, count):
            beside = server.seen(client, seconds)
        with server.under(attack, count) as connections:
            both = [server.seen(each, seconds / 2) for each in (client, proxied)]
        time.sleep(REST_S)
        failed, asked = sum(len(seen.failures) for seen in both), sum(len(seen.took_ms) for seen in both)
        return (
            f"{connections:,} | {_times(quiet)} | {_times(beside)} | {' | '.join(map(_times, both))} | "
            f"{failed} of {asked} | "
            f"{before:.0f}, {server.peak_mib:.0f}, {server.resident_mib:.0f}"
        )


def _times(seen: Seen) -> str:
    return f"{seen.p50_ms:.2f} / {seen.p99_ms:.2f} ms"


if __name__ == "__main__":
    main()
