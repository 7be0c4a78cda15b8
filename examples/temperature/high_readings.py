"""Count the hot readings of each subtask in operator list state, which belongs to no key; then split it in ten.

The first job runs with parallelism 2, and its two subtasks keep the times of hot readings. A second job starts from a
savepoint with parallelism 10: the list is split evenly among its ten subtasks.

Run: python examples/temperature/high_readings.py
"""

from readings import backend, print_all, readings, session, work_directory

from qstate.descriptors import ListStateDescriptor
from qstate.spark import Job, KeyedProcessFunction


class HighReadings(KeyedProcessFunction):
    """Emits, with the last reading of a sensor, how many hot readings the subtask has seen."""

    def open(self, context):
        self.subtask = context.subtask
        self.hot = context.get_operator_list_state(ListStateDescriptor("hot", str))

    def process_element(self, row, context):
        if row.temperature > 35:
            self.hot.add(f"{row.sensor} {row.time:%H:%M:%S}")
        if row.time.second == 59:
            yield row.sensor, self.subtask, len(self.hot.get())


def count(spark, work, **settings):
    """Run the job over all readings; returns the location of a savepoint."""
    work.mkdir()
    with Job(spark, "high-readings", backend=backend(), checkpoint_dir=str(work / "state"), **settings) as job:
        counts = job.key_by(readings(spark, work), "sensor").process(
            HighReadings(), "sensor string, subtask int, hot int", uid="high", order_by="time"
        )
        print_all(counts, work / "checkpoint")
        return job.savepoint(work / "savepoint").location


work = work_directory()
with session() as spark:
    print("two subtasks:")
    savepoint = count(spark, work / "two", parallelism=2)
    print("ten subtasks, which begin with a tenth of the list each:")
    count(spark, work / "ten", parallelism=10, restore_from=savepoint)
