"""A notebook in a real IPython kernel: cells that are run, run again, and interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.spark.streams import REPOSITORY

CELL_TIMEOUT_S = 90.0

SESSION = """
import json, os
from pathlib import Path
from pyspark.sql import SparkSession
from qstate.client import QueryableStateClient
from qstate.spark import Job, KeyedProcessFunction
from qstate.descriptors import ValueStateDescriptor
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1").getOrCreate())
Path("input").mkdir()
def add(number, *keys):
    Path(f".{number}").write_text("".join(json.dumps({"key": key}) + "\\n" for key in keys))
    Path(f".{number}").rename(f"input/{number}.json")
rows = spark.readStream.schema("key string").json("input")
def counts(client):
    found = client.get_many("notebook", "seen", ["a", "b"])
    return {key: view.value() for key, view in found.items() if view is not None}
"""
JOB = """
job = Job(spark, "notebook", checkpoint_dir="state", parallelism=2, proxy_ports="0", server_ports="0")
"""
FUNCTION = """
class Count(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", int).queryable("seen"))
    def process_element(self, row, context):
        self.seen.update((self.seen.value() or 0) + {step})
        return []
result = job.key_by(rows, "key").process(Count(), "key string", uid="count")
query = result.writeStream.format("noop").option("checkpointLocation", "spark").queryName("counting").start()
"""


class Notebook:
    """A kernel, and the cells that run in it."""

    def __init__(self, directory: Path) -> None:
        self.kernel = KernelManager()
        self.kernel._kernel_spec = None
        self.kernel.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.kernel.start_kernel(cwd=str(directory))
        self.client: BlockingKernelClient = self.kernel.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.outputs: list[dict[str, Any]] = []

    def begin(self, cell: str) -> str:
        self.outputs = []
        return str(self.client.execute(cell))

    def end(self, message: str) -> dict[str, Any]:
        """The reply of the cell, when it has ended; its outputs are in `outputs`."""
        deadline = time.monotonic() + CELL_TIMEOUT_S
        while True:
            found = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if found["parent_header"].get("msg_id") != message:
                continue
            if found["msg_type"] == "status" and found["content"]["execution_state"] == "idle":
                break
            self.outputs.append({"type": found["msg_type"], **found["content"]})
        while True:
            reply = self.client.get_shell_msg(timeout=10)
            if reply["parent_header"]["msg_id"] == message:
                return dict(reply["content"])

    def run(self, cell: str) -> str:
        """Run a cell; returns the text that it shows."""
        reply = self.end(self.begin(cell))
        assert reply["status"] == "ok", "\n".join(reply["traceback"])
        return self.text()

    def text(self) -> str:
        parts = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in self.outputs]
        return "".join(parts).strip()

    def interrupt(self, cell: str, *, when: str) -> dict[str, Any]:
        """Interrupt a cell when it shows this text; returns its reply."""
        message = self.begin(cell)
        while True:
            found = self.client.get_iopub_msg(timeout=CELL_TIMEOUT_S)
            content = found["content"]
            self.outputs.append({"type": found["msg_type"], **content})
            if when in str(content.get("text", "")) or when in str(content.get("data", "")):
                break
        self.kernel.interrupt_kernel()
        return self.end(message)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = Notebook(tmp_path)
    yield notebook
    notebook.end(notebook.begin("query.stop(); job.stop(); client.close(); spark.stop()"))
    notebook.client.stop_channels()
    notebook.kernel.shutdown_kernel()
    notebook.kernel.cleanup_resources()


def test_a_notebook_with_cells_that_are_run_again_and_interrupted(notebook: Notebook) -> None:
    notebook.run(SESSION + JOB)
    notebook.run(FUNCTION.format(step=1))
    notebook.run("add(1, 'a', 'a', 'b'); query.processAllAvailable()")
    notebook.run("client = QueryableStateClient(*job.proxy_address)")
    assert notebook.run("print(counts(client))") == "{'a': 2, 'b': 1}"
    processes = notebook.run("print(sorted(one.pid for one in job.manager.task_managers()))")

    # figures: live until the cell is interrupted, which is no error
    reply = notebook.interrupt("job.display(interval_s=0.2)", when="rows/s")
    assert reply["status"] == "ok"
    assert "count" in str(notebook.outputs)
    notebook.run("job.display(0.3, interval_s=0.1)")
    assert {"display_data", "update_display_data"} <= {one["type"] for one in notebook.outputs}
    notebook.run("job")
    assert "<table>" in str(notebook.outputs)

    # interrupted in the middle of a get: the client goes on
    far = "print('begun', flush=True); client.get('notebook', 'seen', 'a', min_epoch=10**6, timeout_s=600)"
    assert notebook.interrupt(far, when="begun")["ename"] == "KeyboardInterrupt"
    assert notebook.run("print(counts(client))") == "{'a': 2, 'b': 1}"

    # interrupted while it waits for the query: the query, the job and its processes go on
    waiting = "print('begun', flush=True); query.awaitTermination()"
    assert notebook.interrupt(waiting, when="begun")["ename"] == "KeyboardInterrupt"
    notebook.run("add(2, 'a'); query.processAllAvailable()")
    assert notebook.run("print(counts(client))") == "{'a': 3, 'b': 1}"
    assert notebook.run("print(sorted(one.pid for one in job.manager.task_managers()))") == processes

    # the cells again, the function with a change: the old job and its query end, the state stays
    notebook.run(JOB)
    assert "the earlier job 'notebook' is stopped, with its query 'counting'" in notebook.text()
    assert notebook.run("print(query.isActive)") == "False"
    notebook.run(FUNCTION.format(step=10))
    notebook.run("add(3, 'b'); query.processAllAvailable(); client = QueryableStateClient(*job.proxy_address)")
    assert notebook.run("print(counts(client))") == "{'a': 3, 'b': 11}"
