"""Keep the last temperature of a sensor only for five seconds after it was read: timers clear what is not needed.

Run: python examples/temperature/self_cleaning.py
"""

from datetime import timedelta

from readings import SENSORS, backend, print_all, readings, session, work_directory

from qstate.client import QueryableStateClient
from qstate.descriptors import ValueStateDescriptor
from qstate.spark import Job, KeyedProcessFunction

KEEP = timedelta(seconds=5)


class SelfCleaningAlert(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("lastTemp", float).queryable("lastTemperature"))
        self.cleared_at = context.get_state(ValueStateDescriptor("clearedAt", int))

    def process_element(self, row, context):
        if row.sensor == "attic" and row.time.second > 40:
            return  # as if it had gone silent
        self.last.update(row.temperature)
        before = self.cleared_at.value()
        if before is not None:
            context.timers.delete_event_time(before)
        self.cleared_at.update(context.timestamp + 5000)
        context.timers.register_event_time(context.timestamp + 5000)

    def on_timer(self, timestamp, context):
        self.last.clear()
        self.cleared_at.clear()
        yield context.current_key, "cleared"


work = work_directory()
settings = {"backend": backend(), "parallelism": 2, "proxy_ports": "0", "server_ports": "0"}
with session() as spark, Job(spark, "self-cleaning", **settings) as job:
    stream = readings(spark, work).withWatermark("time", "2 seconds")
    cleared = job.key_by(stream, "sensor").process(
        SelfCleaningAlert(), "sensor string, what string", uid="alert", order_by="time"
    )
    print_all(cleared, work / "checkpoint")
    with QueryableStateClient(*job.proxy_address) as client:
        for sensor in SENSORS:
            view = client.get("self-cleaning", "lastTemperature", sensor)
            print(sensor, "has no temperature" if view is None else f"has {view.value()}")
