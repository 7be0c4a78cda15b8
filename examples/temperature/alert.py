"""Report a reading that is half as hot again as the one before: keyed value state.

Run: python examples/temperature/alert.py
"""

from readings import backend, print_all, readings, session, work_directory

from qstate.descriptors import ValueStateDescriptor
from qstate.spark import Job, KeyedProcessFunction


class TemperatureAlert(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("lastTemp", float))

    def process_element(self, row, context):
        before = self.last.value()
        self.last.update(row.temperature)
        if before is not None and row.temperature > 1.5 * before:
            yield row.sensor, row.time, before, row.temperature


work = work_directory()
with session() as spark, Job(spark, "alerts", backend=backend(), parallelism=2) as job:
    alerts = job.key_by(readings(spark, work), "sensor").process(
        TemperatureAlert(),
        "sensor string, time timestamp, before double, now double",
        uid="alert",
        order_by="time",
    )
    print_all(alerts, work / "checkpoint")
