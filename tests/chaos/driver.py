"""The driver of a job under chaos: a program of its own, so that it can be killed and started again.

Rules of this module: it knows nothing of the faults that may strike it, save one: when a fault in the sink stopped the
query, it starts the query again. It reports events on standard output, a JSON list in a line; where the task managers
are, in a file. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qstate.spark import Job
from tests.chaos.faults import PLAN_VARIABLE, Place, Plan
from tests.chaos.functions import ALERTS, DELAY_MS, LIMITS, RULING, EndOfTask, Ledger
from tests.chaos.inputs import SCHEMA
from tests.spark.streams import REPOSITORY

__all__ = ["JOB", "main"]

JOB = "chaos"
LOOK_INTERVAL_S = 0.05
#: How long a paused task manager keeps its subtasks.
LEASE_S = 4.0


def main() -> None:
    """The program: `WORK_DIRECTORY SETTINGS`, the settings as JSON."""
    work, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    plan = Plan.of_environment()
    session = _session(settings["master"], plan)
    job = Job(
        session,
        JOB,
        backend=settings["backend"],
        parallelism=settings["parallelism"],
        checkpoint_dir=str(work / "epochs"),
        snapshot_interval=2,
        lease_s=LEASE_S,
        proxy_ports="0",
        server_ports="0",
        standby_replicas=1,
    )
    threading.Thread(target=_report_task_managers, args=(job, work / "task-managers.json"), daemon=True).start()
    files = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(work / "input"))
    rows = files.withColumn("time", F.timestamp_millis("at")).withWatermark("time", f"{DELAY_MS} milliseconds")
    limits = job.stream(files.where(F.col("amount") % RULING == 0)).broadcast(LIMITS, order_by="at")
    alerts = job.key_by(rows, "key").connect(limits).process(Ledger(), ALERTS, uid="ledger", order_by="at")
    _run(alerts.mapInArrow(EndOfTask(), ALERTS), settings["sink"], work, plan)
    (work / "alerts.json").write_text(json.dumps(_alerts(session, work)))
    _tell("done", *job.proxy_address)
    sys.stdin.read()
    job.stop()
    session.stop()


def _session(master: str, plan: Plan) -> SparkSession:
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", f"{Path(__file__).parent / 'injected'}:{REPOSITORY}")
        .config(f"spark.executorEnv.{PLAN_VARIABLE}", str(plan.directory))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _run(result: DataFrame, sink: str, work: Path, plan: Plan) -> None:
    """Run the query over all of its input, however often the sink stops it."""

    def write(batch: DataFrame, epoch: int) -> None:
        batch.write.mode("overwrite").parquet(str(work / "alerts" / f"epoch={epoch}"))
        plan.at(Place.SINK, epoch=epoch)

    while True:
        writer: Any = result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
        writer = writer.format("parquet") if sink == "files" else writer.foreachBatch(write)
        if sink == "files":
            writer = writer.option("path", str(work / "alerts"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as exc:
            _tell("stopped", str(exc))
            if "chaos fault" not in str(exc):
                raise


def _alerts(session: SparkSession, work: Path) -> list[list[Any]]:
    """What the sink has, as Spark reads it: of the file sink, what is in its metadata log."""
    return sorted([row.key, row.at, row.total] for row in session.read.parquet(str(work / "alerts")).collect())


def _report_task_managers(job: Job, path: Path) -> None:
    """Keep the file up to date for as long as the driver lives."""
    written = ""
    while True:
        found = [
            {**asdict(one), "standby": one in standbys}
            for standbys in [job.manager.standbys()]
            for one in [*job.manager.task_managers(), *standbys]
        ]
        text = json.dumps(found)
        if text != written:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").rename(path)
            written = text
        threading.Event().wait(LOOK_INTERVAL_S)


def _tell(*message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
