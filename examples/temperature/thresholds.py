"""Report readings above a threshold that changes while the job runs: broadcast state, with an entry for each kind.

The second stream has a threshold for a kind of sensor in each row, and every subtask gets all of them. A sensor raises
one alert, and the next one only after its kind has got another threshold.

Run: python examples/temperature/thresholds.py
"""

import pyarrow as pa
from pyspark.sql import functions as F
from readings import backend, print_all, readings, session, stream_of, work_directory

from qstate.client import QueryableStateClient
from qstate.descriptors import MapStateDescriptor, ValueStateDescriptor
from qstate.spark import Job, KeyedBroadcastProcessFunction

THRESHOLDS = MapStateDescriptor("thresholds", float).queryable("thresholds")
#: Of a sensor that has raised an alert: its kind.
ALERTED = ValueStateDescriptor("alerted", str)
#: The rows (kind, threshold) of each micro-batch. Without a threshold, the kind raises no alert any more.
CHANGES = [
    [("cold", 26.0), ("warm", 40.0), ("outdoor", 10.0)],
    [("cold", 28.0)],
    [("warm", 60.0), ("outdoor", None)],
]


class ThresholdAlert(KeyedBroadcastProcessFunction):
    def open(self, context):
        self.thresholds = context.get_broadcast_state(THRESHOLDS)
        self.alerted = context.get_state(ALERTED)

    def process_broadcast_element(self, row, context):
        if row.threshold is None:
            self.thresholds.remove(row.kind)
        else:
            self.thresholds.put(row.kind, row.threshold)

        def reset(sensor, alerted):
            if alerted.value() == row.kind:
                alerted.clear()

        context.apply_to_keyed_state(ALERTED, reset)

    def process_element(self, row, context):
        threshold = self.thresholds.get(row.kind)
        if threshold is not None and row.temperature > threshold and self.alerted.value() is None:
            self.alerted.update(row.kind)
            yield row.sensor, row.time, row.temperature, threshold


def changes(spark, work):
    """A stream of (kind, threshold)."""
    tables = [pa.table(dict(zip(("kind", "threshold"), zip(*rows, strict=True), strict=True))) for rows in CHANGES]
    return stream_of(spark, work / "changes", tables, "kind string, threshold double")


work = work_directory()
settings = {"backend": backend(), "parallelism": 2, "proxy_ports": "0", "server_ports": "0"}
with session() as spark, Job(spark, "thresholds", **settings) as job:
    kind = F.when(F.col("sensor") == "kitchen", "warm").otherwise("cold")
    thresholds = job.stream(changes(spark, work)).broadcast(THRESHOLDS)
    alerts = (
        job.key_by(readings(spark, work).withColumn("kind", kind), "sensor")
        .connect(thresholds)
        .process(
            ThresholdAlert(),
            "sensor string, time timestamp, temperature double, threshold double",
            uid="alert",
            order_by="time",
        )
    )
    print_all(alerts, work / "checkpoint")
    with QueryableStateClient(*job.proxy_address) as client:
        for name in ("cold", "warm", "outdoor"):
            view = client.get("thresholds", "thresholds", name)
            print(name, "has no threshold" if view is None else f"has the threshold {view.value()}")
