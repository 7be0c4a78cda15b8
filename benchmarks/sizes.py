"""The amount of work of each benchmark: the full run, the quick run, and a tiny run that only tests the code.

Rules of this module: numbers. The figures of performance.md are those of `FULL`; `QUICK` compares the same
things with fewer rounds and smaller growth curves; `TINY` proves nothing about speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["FULL", "QUICK", "TINY", "Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows and keys per micro-batch, rounds that count, and the ranges of the growth curves."""

    name: str
    alert_rows: int = 500_000
    alert_keys: int = 50_000
    alert_rounds: int = 5
    large_rows: int = 5_000_000
    large_keys: int = 1_000_000
    large_rounds: int = 2
    batch_rows: int = 2_000_000
    batch_keys: int = 50_000
    batch_rounds: int = 5
    sink_rows: int = 2_000_000
    sink_keys: tuple[int, ...] = (1_000_000, 50_000)
    sink_rounds: int = 4
    sink_warm_rounds: int = 3
    held_keys: int = 20_000
    get_rounds: int = 7
    gets_a_round: int = 3_000
    #: Many and short: how long a get of many keys takes goes up and down by a half within a second.
    get_many_rounds: int = 40
    get_many_a_round: int = 400
    in_flight_s: float = 1.0
    #: Micro-batches take a tenth more or less each: the ratio of so many is good for two hundredths.
    load_rounds: int = 48
    load_gets_per_s: int = 10_000
    live_rows: int = 1_000_000
    live_keys: int = 100_000
    live_rounds: int = 5
    live_s: float = 4.0
    #: Of the job that does not saturate the processors.
    live_rows_per_s: int = 10_000
    checkpoint_keys: int = 1_000_000
    checkpoint_rounds: int = 5
    memory_keys: int = 4_000_000
    memory_epoch_keys: int = 500_000
    #: A tenth is due in one epoch.
    timers: int = 10_000_000
    timer_rounds: int = 3
    ttl_keys: int = 1_000_000
    ttl_rounds: int = 3
    #: In each epoch of a sweep.
    ttl_sweep_rows: int = 20_000
    scan_keys: int = 1_000_000
    scan_rounds: int = 3
    subscribed_keys: int = 20_000
    subscribed_epochs: int = 50
    subscribed_rounds: int = 5
    #: One a second.
    timed_epochs: int = 100
    cached_get_s: float = 3.0
    cached_get_rounds: int = 5
    snapshot_rounds: int = 5
    large_job_managers: tuple[int, ...] = (1_000, 10_000)
    served_requests: int = 200_000
    sized_keys: int = 1_000_000
    growth_rows: int = 500_000
    growth_batches: int = 2
    growth_pipeline_keys: tuple[int, ...] = (1_000, 10_000, 100_000, 400_000)
    growth_parallelism: tuple[int, ...] = (1, 2, 4)
    growth_held_keys: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    growth_value_bytes: tuple[int, ...] = (8, 128, 1_024, 8_192, 65_536)
    growth_in_flight: tuple[int, ...] = (1, 4, 16, 64, 256)
    growth_checkpoint_keys: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    growth_changes: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000, 100_000)


FULL = Sizes("full")
QUICK = replace(
    FULL,
    name="quick",
    alert_rounds=2,
    large_rounds=1,
    batch_rounds=2,
    sink_rounds=2,
    sink_warm_rounds=2,
    get_rounds=3,
    gets_a_round=2_000,
    get_many_rounds=10,
    get_many_a_round=200,
    in_flight_s=0.5,
    load_rounds=8,
    live_rounds=2,
    live_s=2.0,
    scan_keys=200_000,
    checkpoint_rounds=3,
    memory_keys=1_000_000,
    timers=1_000_000,
    timer_rounds=2,
    ttl_keys=200_000,
    ttl_rounds=2,
    snapshot_rounds=3,
    large_job_managers=(1_000,),
    growth_batches=1,
    growth_pipeline_keys=(1_000, 100_000),
    growth_parallelism=(1, 2),
    growth_held_keys=(1_000, 100_000),
    growth_value_bytes=(8, 1_024, 65_536),
    growth_in_flight=(1, 16, 256),
    growth_checkpoint_keys=(10_000, 300_000),
    growth_changes=(1_000, 100_000),
)
TINY = Sizes(
    "tiny",
    alert_rows=2_000,
    alert_keys=200,
    alert_rounds=1,
    large_rows=5_000,
    large_keys=1_000,
    large_rounds=1,
    batch_rows=2_000,
    batch_keys=200,
    batch_rounds=1,
    sink_rows=2_000,
    sink_keys=(500,),
    sink_rounds=1,
    sink_warm_rounds=1,
    held_keys=500,
    get_rounds=1,
    gets_a_round=20,
    get_many_rounds=1,
    get_many_a_round=5,
    in_flight_s=0.05,
    load_rounds=1,
    load_gets_per_s=200,
    live_rows=2_000,
    live_keys=200,
    live_rounds=1,
    live_s=0.1,
    live_rows_per_s=100,
    scan_keys=500,
    large_job_managers=(20,),
    served_requests=500,
    sized_keys=500,
    scan_rounds=1,
    checkpoint_keys=2_000,
    checkpoint_rounds=1,
    memory_keys=2_000,
    memory_epoch_keys=1_000,
    timers=2_000,
    timer_rounds=1,
    ttl_keys=2_000,
    ttl_rounds=1,
    ttl_sweep_rows=100,
    subscribed_keys=200,
    subscribed_epochs=10,
    subscribed_rounds=1,
    cached_get_s=0.2,
    cached_get_rounds=1,
    snapshot_rounds=1,
    growth_rows=2_000,
    growth_batches=1,
    growth_pipeline_keys=(100, 1_000),
    growth_parallelism=(1, 2),
    growth_held_keys=(100, 1_000),
    growth_value_bytes=(8, 256),
    growth_in_flight=(1, 4),
    growth_checkpoint_keys=(100, 1_000),
    growth_changes=(10, 100),
)
