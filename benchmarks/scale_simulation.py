"""Simulates a million gets a second against a job of ten thousand subtasks, from service times that were measured.

    python -m benchmarks.scale_simulation

Rules of this module: a discrete-event simulation without sockets, clocks or Spark; the same seed gives the same table.
What goes in is in `Measured` (see `benchmarks/service_times.py` and `docs/explanation/performance.md`) and in
`Assumed`, which nobody has measured here. Each proxy and each owner is one processor with a queue, first come, first
served. A get passes client, network, proxy, network, owner, network, proxy, network, client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from random import Random

__all__ = ["PLANS", "Assumed", "Measured", "Outcome", "Plan", "render", "simulate"]

#: Gets of one simulation, in which a queue's mean length is right to a tenth. The first tenth only fills the queues.
GETS = 20_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of processor time, and the wait for the interpreter of a process whose operator works all the time:
    its median, and its 99th percentile (P8, one get at a time)."""

    proxy_us: float = 57.0
    owner_us: float = 33.0
    wait_p50_us: float = 30.0
    wait_p99_us: float = 5_900.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """One way through a network inside one data centre."""

    network_us: float = 100.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout and its load. `skew` is the exponent of a Zipf distribution over `keys` keys, 0 for all alike.

    `in_task_managers`: the proxies are those of task managers, whose operators work all the time, and not processes of
    their own. `cached_s`: clients keep values for so long, and `clients` processes ask.
    """

    name: str
    proxies: int
    gets_per_s: float = 1_000_000
    owners: int = 10_000
    keys: int = 100_000
    skew: float = 0.0
    in_task_managers: bool = True
    clients: int = 1_000
    cached_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Latencies in milliseconds, the busiest proxy and owner as shares of a processor, and all processors together."""

    plan: Plan
    asked_per_s: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    busiest_proxy: float
    busiest_owner: float
    processors: float


PLANS = (
    Plan("500 proxies in task managers", 500),
    Plan("2,000 proxies in task managers", 2_000),
    Plan("100 proxies of their own", 100, in_task_managers=False),
    Plan("200 proxies of their own", 200, in_task_managers=False),
    Plan("the same, keys by Zipf's law", 200, in_task_managers=False, skew=1.0),
    Plan("the same, clients with a cache of 1 s", 200, in_task_managers=False, skew=1.0, cached_s=1.0),
)


class _Processor:
    """One processor with a queue."""

    __slots__ = ("busy_us", "free_at")

    def __init__(self) -> None:
        self.free_at = 0.0
        self.busy_us = 0.0

    def done(self, at: float, takes_us: float) -> float:
        """When work is done that arrives at this time. Times have to ascend."""
        self.free_at = max(at, self.free_at) + takes_us
        self.busy_us += takes_us
        return self.free_at


def simulate(plan: Plan, measured: Measured = Measured(), assumed: Assumed = Assumed(), seed: int = 1) -> Outcome:
    """Run one plan until `GETS` gets have been answered."""
    random = Random(seed)
    asked_per_s = _asked_per_s(plan)
    gap_us = 1e6 / asked_per_s
    owner_of = _chooser(plan, random)
    waits = _waits(measured, random)
    proxies = [_Processor() for _ in range(plan.proxies)]
    owners: dict[int, _Processor] = {}
    half, net = measured.proxy_us / 2, assumed.network_us
    # (time, number of the get, stage, began at, proxy, owner): at the proxy, at the owner, at the proxy again
    events: list[tuple[float, int, int, float, int, int]] = []
    began, latencies = 0.0, []
    for number in range(GETS):
        began += random.expovariate(1.0) * gap_us
        arrives = began + net + (next(waits) if plan.in_task_managers else 0.0)
        heappush(events, (arrives, number, 0, began, random.randrange(plan.proxies), owner_of()))
    end = began
    while events:
        at, number, stage, start, proxy, owner = heappop(events)
        if stage == 0:
            ready = proxies[proxy].done(at, half) + net + next(waits)
            heappush(events, (ready, number, 1, start, proxy, owner))
        elif stage == 1:
            ready = owners.setdefault(owner, _Processor()).done(at, measured.owner_us) + net
            heappush(events, (ready + (next(waits) if plan.in_task_managers else 0.0), number, 2, start, proxy, owner))
        else:
            end = max(end, proxies[proxy].done(at, half))
            if number >= GETS // 10:
                latencies.append(proxies[proxy].free_at + net - start)
    latencies.sort()
    return Outcome(
        plan,
        asked_per_s,
        sum(latencies) / len(latencies) / 1000,
        latencies[len(latencies) // 2] / 1000,
        latencies[len(latencies) * 99 // 100] / 1000,
        max(one.busy_us for one in proxies) / began,
        max(one.busy_us for one in owners.values()) / began,
        asked_per_s * (measured.proxy_us + measured.owner_us) / 1e6,
    )


def _asked_per_s(plan: Plan) -> float:
    """How many gets leave the clients. A client with a cache asks for a key once in `cached_s`, if it uses it."""
    if not plan.cached_s:
        return plan.gets_per_s
    each = plan.gets_per_s / plan.clients * plan.cached_s
    return plan.clients / plan.cached_s * sum(1 - math.exp(-each * share) for share in _shares(plan))


def _shares(plan: Plan) -> Iterator[float]:
    weights = [1 / (rank + 1) ** plan.skew for rank in range(plan.keys)]
    total = sum(weights)
    return (weight / total for weight in weights)


def _chooser(plan: Plan, random: Random) -> Callable[[], int]:
    """The owner of a random key that leaves a client. Hash functions spread keys over owners as chance does."""
    if not plan.skew:
        return lambda: random.randrange(plan.owners)
    shares: Sequence[float] = list(_shares(plan))
    if plan.cached_s:
        each = plan.gets_per_s / plan.clients * plan.cached_s
        shares = [1 - math.exp(-each * share) for share in shares]
    places = Random(plan.owners)
    home = [places.randrange(plan.owners) for _ in range(plan.keys)]
    chosen = iter(random.choices(home, cum_weights=list(accumulate(shares)), k=GETS))
    return lambda: next(chosen)


def _waits(measured: Measured, random: Random) -> Iterator[float]:
    """Waits for an interpreter: log-normal, with the measured median and 99th percentile."""
    if not measured.wait_p50_us:
        while True:
            yield 0.0
    centre = math.log(measured.wait_p50_us)
    spread = (math.log(measured.wait_p99_us) - centre) / 2.3263
    while True:
        yield random.lognormvariate(centre, spread)


def render() -> str:
    """The table of all plans, as it is in the documentation."""
    rows = [
        "| layout | gets/s that leave the clients | p50 | p99 | busiest proxy | busiest owner | processors in all |",
        "|---|---|---|---|---|---|---|",
    ]
    for plan in PLANS:
        found = simulate(plan)
        rows.append(
            f"| {plan.name} | {found.asked_per_s:,.0f} | {found.p50_ms:.1f} ms | {found.p99_ms:.1f} ms "
            f"| {found.busiest_proxy:.2f} | {found.busiest_owner:.2f} | {found.processors:.0f} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(render(), end="")
