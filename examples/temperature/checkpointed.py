"""Count hot readings in an attribute of the function, stored with each epoch, and the last one of a sensor in state.

The count is returned in ten parts, so that it can be split among ten subtasks: the second job, with parallelism 10,
continues from the savepoint of the first.

Run: python examples/temperature/checkpointed.py
"""

from readings import backend, print_all, readings, session, work_directory

from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.spark import CheckpointedFunction, Job, KeyedProcessFunction


class HighReadings(KeyedProcessFunction, CheckpointedFunction):
    def __init__(self):
        self.count = 0

    def initialize_state(self, context):
        self.last = context.keyed_state_store.get_state(ValueStateDescriptor("last", float))
        self.parts = context.operator_state_store.get_list_state(ListStateDescriptor("parts", int))
        self.count = sum(self.parts.get())

    def snapshot_state(self, context):
        tenth, rest = divmod(self.count, 10)
        self.parts.update([tenth + (part < rest) for part in range(10)])

    def process_element(self, row, context):
        self.count += row.temperature > 30
        before = self.last.value()
        self.last.update(row.temperature)
        if row.time.second == 59:
            yield row.sensor, before, self.count


def run(spark, work, **settings):
    """Run the job over all readings; returns the location of a savepoint."""
    work.mkdir()
    with Job(spark, "checkpointed", backend=backend(), checkpoint_dir=str(work / "state"), **settings) as job:
        counts = job.key_by(readings(spark, work), "sensor").process(
            HighReadings(), "sensor string, before double, hot int", uid="high", order_by=["time", "sensor"]
        )
        print_all(counts, work / "checkpoint")
        return job.savepoint(work / "savepoint").location


work = work_directory()
with session() as spark:
    print("two subtasks:")
    savepoint = run(spark, work / "two", parallelism=2)
    print("ten subtasks, which begin with a tenth of the counts each:")
    run(spark, work / "ten", parallelism=10, restore_from=savepoint)
