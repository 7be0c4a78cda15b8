"""The settings of a job for production: RocksDB with its directory and options, checkpoints, uid, max parallelism.

Run: python examples/temperature/configuration.py
"""

from readings import print_all, readings, session, work_directory

from qstate.descriptors import ValueStateDescriptor
from qstate.spark import Job, KeyedProcessFunction


class Highest(KeyedProcessFunction):
    def open(self, context):
        self.highest = context.get_state(ValueStateDescriptor("highest", float, default=0.0))

    def process_element(self, row, context):
        if row.temperature > self.highest.value() + 10:
            self.highest.update(row.temperature)
            yield row.sensor, row.temperature


work = work_directory()
settings = {
    # State larger than memory, in RocksDB; each option has a default.
    "backend": "rocksdb",
    "backend_options": {"write_buffer_mib": 64, "block_cache_mib": 128, "compression": "zstd"},
    # Every epoch is durable here; a snapshot every 50 epochs replaces them, and the last three snapshots stay.
    "checkpoint_dir": str(work / "state"),
    "snapshot_interval": 50,
    "retained_snapshots": 3,
    "snapshot_timeout_s": 300.0,
    "checkpoint_compression": "lz4",
    # The parallelism may change later, up to the number of key groups, which may not.
    "parallelism": 2,
    "max_parallelism": 720,
}
with session() as spark, Job(spark, "configured", **settings) as job:
    highest = job.key_by(readings(spark, work), "sensor").process(
        Highest(),
        "sensor string, highest double",
        uid="highest",  # names the operator's state: keep it when the program changes
        order_by="time",
    )
    print_all(highest, work / "checkpoint")
    for name in ("backend", "snapshot_interval", "retained_snapshots", "max_parallelism"):
        print(name, getattr(job.config, name))
    print("epochs stored:", len(list((work / "state").glob("highest-*/*/00000/*.log"))) - 1)
