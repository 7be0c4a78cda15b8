"""What clients that mean it ill cost the others: latency, failures and memory.

Rules of this module: one attack after the other, each on a server of its own, with a well-behaved client that asks one
key at a time beside it. `python -m benchmarks.hostile [--seconds N] [--backend heap]` prints a table of figures; they
have no target, because attackers and server share the machine's processors.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.hostile_runs import Attacked, attacked

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
    options = parser.parse_args()
    print("| backend | attack | connections | quiet p50 / p99 | p50 / p99 | failed | MiB before, at most, after |")
    print("|---|---|---|---|---|---|---|")
    for backend in options.backend or ["heap", "rocksdb"]:
        for attack, count in ATTACKS.items():
            with tempfile.TemporaryDirectory() as place, attacked(backend, Path(place) / "state") as server:
                print(f"| {backend} | {attack} | {_row(server, attack, count, options.seconds)} |", flush=True)


def _row(server: Attacked, attack: str, count: int, seconds: float) -> str:
    with server.client() as client:
        quiet, before = server.seen(client, seconds / 2), server.resident_mib
        with server.under(attack, count) as connections:
            seen = server.seen(client, seconds)
        time.sleep(REST_S)
    return (
        f"{connections:,} | {quiet.p50_ms:.2f} / {quiet.p99_ms:.2f} ms | {seen.p50_ms:.2f} / {seen.p99_ms:.2f} ms | "
        f"{len(seen.failures)} of {len(seen.took_ms)} | {before:.0f}, {server.peak_mib:.0f}, {server.resident_mib:.0f}"
    )


if __name__ == "__main__":
    main()
