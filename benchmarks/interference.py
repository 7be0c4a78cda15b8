"""P7 and P8: what queries cost the pipeline, and what the pipeline costs the queries.

Rules of this module: it lets the temperature alert job (heap, parallelism 2) and a client process take turns at
disturbing each other. The client is a process of its own on the same machine, so what it burns is part of the cost.

P7: warm micro-batches without queries, with `load_gets_per_s` gets a second sent directly, and with as many sent
through the proxy (a figure without target), in turn. P8: the p99 of single gets, `PROBES_PER_S` a second, with the
pipeline idle and with batch upon batch, in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.alert_job import STATE
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.latencies import percentile
from benchmarks.live_client import LiveClient
from benchmarks.micro_batches import FedQuery
from benchmarks.pipelines import alert_query
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved, say

__all__ = ["run"]

PROBES_PER_S = 500
#: Micro-batches before anything is measured.
WARM_BATCHES = 2


def run(bench: Bench) -> Findings:
    """P7 and P8, whichever are wanted."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.alert_rows, keys=sizes.alert_keys)
    findings = Findings()
    with ExitStack() as stack:
        job = stack.enter_context(bench.job("heap"))
        query = stack.enter_context(alert_query(bench, job, files))
        query.write_ahead(WARM_BATCHES + 3 * (sizes.load_rounds + 1) + sizes.probe_rounds * (sizes.probe_batches + 2))
        query.feed(WARM_BATCHES)
        client = stack.enter_context(LiveClient(job.proxy_address, job.name, STATE, sizes.alert_keys))
        if bench.wants("p7"):
            findings.add(_pipeline_under_load(bench, query, client))
        if bench.wants("p8"):
            findings.add(_gets_under_pipeline(bench, query, client))
    return findings


def _pipeline_under_load(bench: Bench, query: FedQuery, client: LiveClient) -> Findings:
    sizes = bench.sizes
    rates: list[float] = []

    def loaded(*, direct: bool) -> Callable[[], float]:
        def measure() -> float:
            client.start_load(sizes.load_gets_per_s, direct=direct)
            sample = query.rows_per_s()
            rates.append(client.stop_load())
            return sample

        return measure

    contenders = {
        "quiet": query.rows_per_s,
        "direct": loaded(direct=True),
        "proxy": loaded(direct=False),
    }
    samples = interleaved(contenders, rounds=sizes.load_rounds)
    detail = f"answered {percentile(rates, 50):,.0f} gets/s"
    return Findings(
        [Comparison("P7", "rows/s", samples["direct"], samples["quiet"], "no queries", detail)],
        [Figure("pipeline under the same gets/s through the proxy", "rows/s", samples["proxy"])],
    )


def _gets_under_pipeline(bench: Bench, query: FedQuery, client: LiveClient) -> Findings:
    sizes = bench.sizes
    found: dict[str, list[float]] = {"idle p50": [], "idle p99": [], "busy p50": [], "busy p99": []}
    for number in range(sizes.probe_rounds):
        client.begin_probe(PROBES_PER_S, sizes.probe_s)
        idle = client.end_probe()
        (time,) = query.feed()
        # A batch less than what is fed, so that the pipeline is busy to the end of the probe.
        client.begin_probe(PROBES_PER_S, sizes.probe_batches * time.trigger_s)
        query.feed(sizes.probe_batches + 1)
        busy = client.end_probe()
        for name, latencies in (("idle", idle), ("busy", busy)):
            found[f"{name} p50"].append(percentile(latencies, 50))
            found[f"{name} p99"].append(percentile(latencies, 99))
        say(f"  round {number}: p99 idle {found['idle p99'][-1]:,.0f} us, busy {found['busy p99'][-1]:,.0f} us")
    detail = f"{PROBES_PER_S} gets/s, one at a time"
    return Findings(
        [Comparison("P8", "us", found["busy p99"], found["idle p99"], "idle", detail)],
        [Figure(f"live get, pipeline {name}", "us", found[name]) for name in ("idle p50", "busy p50")],
    )
