"""A warning about a token on a command line, where Spark puts the conf of a session that is built in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.documentation import ROOT

TOKEN = "hush-a-secret"
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from qstate.spark import Job
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for setting in sys.stdin.read().split():
    builder = builder.config(*setting.split("="))
spark = builder.getOrCreate()
with Job(spark, "job", proxy_ports="0", server_ports="0") as job:
    print("token:", job.config.auth_token)
spark.stop()
"""


def said_of(settings: str) -> tuple[str, str]:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=settings,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return answer.stdout, answer.stderr


def test_a_token_in_the_sessions_conf_is_warned_about() -> None:
    out, err = said_of(f"spark.qstate.auth.token={TOKEN}")
    assert f"token: {TOKEN}" in out
    assert "every user of this host can read the job's token" in err and "auth_token_file" in err
    assert TOKEN not in err


@pytest.mark.parametrize("end", ["", "\n"])
def test_token_in_a_file_is_not_warned_about(tmp_path: Path, end: str) -> None:
    (tmp_path / "token").write_text(TOKEN + end)
    out, err = said_of(f"spark.qstate.auth.token.file={tmp_path / 'token'}")
    assert f"token: {TOKEN}" in out
    assert "can read the job's token" not in err
