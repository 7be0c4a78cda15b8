"""P7: what queries cost the pipeline.

Rules of this module: it lets a client process disturb the temperature alert job (heap, parallelism 2). The client is
on the same machine, so what it burns is part of the cost. Warm micro-batches without queries, with
`load_gets_per_s` gets a second sent directly, and with as many sent through the proxy (a figure without target),
take turns.
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
from benchmarks.rounds import interleaved

__all__ = ["run"]

#: Micro-batches before anything is measured.
WARM_BATCHES = 2


def run(bench: Bench) -> Findings:
    """P7."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.alert_rows, keys=sizes.alert_keys)
    with ExitStack() as stack:
        job = stack.enter_context(bench.job("heap"))
        query = stack.enter_context(alert_query(bench, job, files))
        query.write_ahead(WARM_BATCHES + 3 * (sizes.load_rounds + 1))
        query.feed(WARM_BATCHES)
        client = stack.enter_context(LiveClient(job.proxy_address, job.name, STATE, sizes.alert_keys))
        return _pipeline_under_load(bench, query, client)


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
