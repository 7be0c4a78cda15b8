"""The same alert in one function: `flat_map_with_state` keeps one value for each key.

Run: python examples/temperature/flat_map.py
"""

from readings import backend, print_all, readings, session, work_directory

from qstate.descriptors import ValueStateDescriptor
from qstate.spark import Job


def alert(row, before):
    """Gets a row and the value of its key; returns the rows to emit and the new value."""
    hot = before is not None and row.temperature > 1.5 * before
    return [(row.sensor, row.time, before, row.temperature)] if hot else [], row.temperature


work = work_directory()
with session() as spark, Job(spark, "alerts", backend=backend(), parallelism=2) as job:
    alerts = job.key_by(readings(spark, work), "sensor").flat_map_with_state(
        alert,
        "sensor string, time timestamp, before double, now double",
        uid="alert",
        state=ValueStateDescriptor("lastTemp", float),
        order_by="time",
    )
    print_all(alerts, work / "checkpoint")
