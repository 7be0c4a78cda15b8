"""The golden signals of services, per minute: requests, error rate and latency, served live to a client.

What many teams write to Redis to look at: here clients read it from the running job. Figures of a minute are dropped a
while after they were last changed, by the time-to-live of the state.

Run: python examples/golden_signals/golden_signals.py
"""

import os
import time
from bisect import bisect_left
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from qstate.client import QueryableStateClient
from qstate.descriptors import AggregateFunction, AggregatingStateDescriptor, StateTtl, ValueStateDescriptor
from qstate.spark import Job, KeyedProcessFunction

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SERVICES = ("checkout", "search")
#: The upper bounds of the latency histogram, in milliseconds.
BOUNDS = (5, 10, 20, 50, 100, 200, 500, 1000)


class Signals(AggregateFunction):
    """Counts requests, errors and latencies; the result is what a dashboard shows."""

    def create_accumulator(self):
        return [0, 0, [0] * (len(BOUNDS) + 1)]

    def add(self, request, accumulator):
        status, latency_ms = request
        accumulator[0] += 1
        accumulator[1] += status >= 500
        accumulator[2][bisect_left(BOUNDS, latency_ms)] += 1
        return accumulator

    def get_result(self, accumulator):
        requests, errors, histogram = accumulator
        return {
            "requests": requests,
            "errors": round(errors / requests, 3),
            "p50_ms": percentile(histogram, 0.50),
            "p99_ms": percentile(histogram, 0.99),
        }

    def merge(self, one, other):
        return [one[0] + other[0], one[1] + other[1], [a + b for a, b in zip(one[2], other[2], strict=True)]]


def percentile(histogram, share):
    """The upper bound of the bucket that has this share of the requests."""
    rest = share * sum(histogram)
    for bound, count in zip((*BOUNDS, float("inf")), histogram, strict=True):
        rest -= count
        if rest <= 0:
            return bound
    return BOUNDS[-1]


class GoldenSignals(KeyedProcessFunction):
    def open(self, context):
        hour, moment = StateTtl(timedelta(hours=1)), StateTtl(timedelta(seconds=2))
        self.signals = context.get_aggregating_state(
            AggregatingStateDescriptor("signals", list, aggregate_function=Signals(), ttl=hour).queryable("signals")
        )
        self.incident = context.get_state(ValueStateDescriptor("incident", str, ttl=moment).queryable("incident"))

    def process_element(self, row, context):
        self.signals.in_namespace(f"{row.time:%H:%M}").add((row.status, row.latency_ms))
        if row.status >= 500:
            self.incident.update(f"status {row.status} at {row.time:%H:%M:%S}")


def status(service, second):
    """Every tenth request to `checkout` fails in the second minute."""
    return 503 if service == "checkout" and 60 <= second < 120 and second % 10 == 0 else 200


def latency_ms(second):
    """Up to 44 ms, and a slow request twice a minute."""
    return float(400 if second % 30 == 29 else 5 + (7 * second) % 40)


def requests(spark, directory):
    """A stream of generated requests: two services, three minutes, one micro-batch a minute."""
    directory.mkdir()
    for minute in range(3):
        rows = [(service, 60 * minute + second) for second in range(60) for service in SERVICES]
        table = pa.table(
            {
                "service": [service for service, _ in rows],
                "time": pa.array([START + timedelta(seconds=second) for _, second in rows], pa.timestamp("us", "UTC")),
                "status": [status(*row) for row in rows],
                "latency_ms": [latency_ms(second) for _, second in rows],
            }
        )
        file = directory / f"{minute}.parquet"
        pq.write_table(table, file)
        os.utime(file, (minute, minute))
    schema = "service string, time timestamp, status long, latency_ms double"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def show(client):
    """What a dashboard would show."""
    for minute in ("00:00", "00:01", "00:02"):
        found = client.get_many("golden-signals", "signals", SERVICES, namespace=minute)
        for service in SERVICES:
            print(minute, service, found[service].get())


def await_calm(client):
    """Wait until the last error of `checkout` has expired: nothing clears it but its time-to-live."""
    deadline = time.monotonic() + 60
    while client.get("golden-signals", "incident", "checkout") is not None:
        if time.monotonic() > deadline:
            raise TimeoutError("the incident has not expired")
        time.sleep(0.1)


def main():
    running = SparkSession.getActiveSession()
    builder = SparkSession.builder.master(os.environ.get("SPARK_MASTER", "local[2]"))
    spark = running or builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    work = Path(mkdtemp(prefix="qstate-example-"))
    backend = os.environ.get("QSTATE_EXAMPLE_BACKEND", "rocksdb")
    settings = {"backend": backend, "parallelism": 2, "proxy_ports": "0", "server_ports": "0"}
    with Job(spark, "golden-signals", **settings) as job:
        result = job.key_by(requests(spark, work / "requests"), "service").process(
            GoldenSignals(), "nothing string", uid="signals", order_by="time"
        )
        query = result.writeStream.format("noop").option("checkpointLocation", str(work / "checkpoint")).start()
        query.processAllAvailable()
        with QueryableStateClient(*job.proxy_address) as client:
            show(client)
            await_calm(client)
            print("checkout has no incident any more")
        query.stop()
    if running is None:
        spark.stop()


main()
