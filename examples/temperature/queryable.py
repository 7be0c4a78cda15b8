"""Serve the highest temperature of each ten seconds to other programs: queryable state with a window as namespace.

Run: python examples/temperature/queryable.py
The dashboard (dashboard.py) reads it while the program waits for its input to end.
"""

from dashboard import print_dashboard
from pyspark.sql import functions as F
from readings import backend, readings, session, work_directory

from qstate.descriptors import ReducingStateDescriptor
from qstate.spark import Job

work = work_directory()
settings = {"backend": backend(), "parallelism": 2, "proxy_ports": "0", "server_ports": "0"}
with session() as spark, Job(spark, "temperatures", **settings) as job:
    window = F.date_format(F.window("time", "10 seconds").start, "HH:mm:ss")
    windowed = readings(spark, work).withColumn("window", window)
    sink = job.key_by(windowed, "sensor").as_queryable_state(
        ReducingStateDescriptor("maximum", float, reduce_function=max),
        uid="maximum",
        value="temperature",
        namespace="window",
    )
    query = sink.start(checkpoint_location=str(work / "checkpoint"))
    query.processAllAvailable()
    host, port = job.proxy_address
    print_dashboard(host, port)
    query.stop()
