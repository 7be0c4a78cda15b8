"""Laws of actions of the driver: a task manager refuses them at once, and names the module that tried."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.errors import JobError
from tests.runtime.job.functions import Importing
from tests.runtime.job.running_job import RunningJob, rows_batch

JobOf = Callable[..., RunningJob]
FUNCTION = "from tests.runtime.job.functions import Totals\nfunction = Totals()\n"
#: A Spark application takes longer than this to start.
AT_ONCE_S = 15.0


GET_SPARK = """
from pyspark.sql import SparkSession
from tests.runtime.job.functions import Open
def get_spark():
    SparkSession.builder.master("local[1]").getOrCreate()
function = Open(get_spark)
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]').getOrCreate()", "starts Spark"),
        ("import pyspark; pyspark.SparkContext('local[1]', 'again')", "starts Spark"),
        (
            "import pyspark; pyspark.SparkContext(conf=pyspark.SparkConf().setMaster('local[1]')"
            ".set('spark.executor.allowSparkContext', 'true'))",
            "starts Spark",
        ),
        ("from spark_helper import get_spark; get_spark()", "starts Spark"),
        ("import qstate.spark; qstate.spark.Job(None, 'again')", "creates a job"),
    ],
    ids=["session", "context", "allowed", "through a function", "job"],
)
def test_a_module_that_does_it_when_imported_is_named(
    line: str, what: str, job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_module.py").write_text(f"{FUNCTION}{line}\n")
    (tmp_path / "spark_helper.py").write_text(GET_SPARK)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_of(Importing("users_module"))
    begun = time.monotonic()
    with pytest.raises(JobError, match=rf"module 'users_module' \(.*users_module\.py, line 3\) {what} .*__main__"):
        job.epoch(0, rows_batch(("a", 1)))
    assert time.monotonic() - begun < AT_ONCE_S


def test_a_function_that_does_it_is_named(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_module.py").write_text(GET_SPARK)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_of(Importing("users_module"))
    with pytest.raises(JobError, match=r"open\(\): JobError: get_spark\(\) of module 'users_module' .* starts Spark"):
        job.epoch(0, rows_batch(("a", 1)))


def test_modules_that_import_pyspark_and_do_no_such_thing_are_free_to(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = (
        "import inspect, pyspark\n"
        "from pyspark.sql import SparkSession, functions\n"
        "from pyspark.core import context\n"
        "assert SparkSession.getActiveSession() is None\n"
        "assert 'class SparkContext' in inspect.getsource(context)\n"
        'if __name__ == "__main__":\n'
        "    SparkSession.builder.getOrCreate()\n"
    )
    (tmp_path / "users_module.py").write_text(harmless + FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = job_of(Importing("users_module"))
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
