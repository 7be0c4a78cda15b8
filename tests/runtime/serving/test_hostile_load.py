"""Clients that mean it ill, in processes of their own, do not keep others from being served.

How much slower others get is measured by `benchmarks/hostile.py`. Here no time is bounded but that of an answer,
because other work on the machine takes time, too: what these tests find is a server that fails requests, grows, keeps
what it has grown by, or stops answering.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.hostile_runs import Attacked, attacked
from tests.runtime.serving.raw_client import wait_until

#: Beside what a server has anyway: the default budgets of a proxy and a state server are 2 x 64. Beside them there are
#: the answers that are being made, and connections.
MOST_MIB = 2 * 64 + 64
#: What is left of that when the attackers are gone.
MOST_LEFT_MIB = 48
#: A busy machine takes longer than any attack.
TIMEOUT_S = 60.0
SECONDS = 1.0
#: Less than in the benchmark: RocksDB writes them first.
LARGE_BYTES = 4 << 20
ATTACKS = {
    "idle": 2_000,
    "slow_writers": 500,
    "half_frames": 100,
    "never_reads": 100,
    "pipelines": 100_000,
    "large_gets": 4,
    "handshakes": 500,
}


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked("heap", tmp_path_factory.mktemp("hostile") / "state", LARGE_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def rocksdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked("rocksdb", tmp_path_factory.mktemp("hostile") / "state", LARGE_BYTES) as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_served_and_memory_stays_bounded(heap: Attacked, attack: str) -> None:
    check(heap, attack)


@pytest.mark.parametrize("attack", ["never_reads", "large_gets"])
def test_large_values_on_disk_harm_no_others(rocksdb: Attacked, attack: str) -> None:
    check(rocksdb, attack)


def check(server: Attacked, attack: str) -> None:
    with server.client(TIMEOUT_S) as client, server.under(attack, ATTACKS[attack]):
        seen = server.seen(client, SECONDS)
        with server.client(TIMEOUT_S) as new:
            others = server.seen(new, SECONDS / 10)
    assert not seen.failures and not others.failures
    assert seen.took_ms and others.took_ms
    assert server.peak_mib - server.began_mib < MOST_MIB
    # The quota also bounds how fast the requests of attackers that are gone come to their end.
    most_mib = server.began_mib + MOST_LEFT_MIB
    wait_until(lambda: server.resident_mib < most_mib, f"falling below {most_mib:.0f} MiB", TIMEOUT_S)
