"""`qstate demo` as a user runs it: a process of its own, queried from another, ended with Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import qstate
from qstate.cli import main as cli
from qstate.demo.data import prepare
from qstate.demo.main import _kept_directory
from qstate.demo.streams import cause_of
from qstate.errors import ConfigError
from tests.cli.test_command_line import assert_one_line_error, run
from tests.runtime.job.other_user import OtherUser, other_user, shared_temporary

__all__ = ["other_user", "shared_temporary"]

pytestmark = pytest.mark.spark

PATIENCE_S = 240.0
#: How long the page may take to show what only the next epochs bring.
PAGE_PATIENCE_MS = 60_000.0


@contextmanager
def demo(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, running; killed if it outlives the test. Its temporary directories are below `directory`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(qstate.__file__).parents[1]), "TMPDIR": str(directory)}
    process = subprocess.Popen(
        [sys.executable, "-m", "qstate.cli.main", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        watchdog.join()
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], part: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if part in line:
            return lines
    raise AssertionError(
        f"the demo ended without {part!r}: {''.join(lines)} {process.stderr and process.stderr.read()}"
    )


def test_demo_compares_serves_and_cleans_up(tmp_path: Path) -> None:
    with demo(tmp_path, "--days", "30", "--backend", "rocksdb", "--ports", "0", "--serve") as process:
        printed = "".join(lines_until(process, "serving until Ctrl-C"))
        assert re.search(r"compared [\d,]+ keys: 0 mismatches", printed)
        assert re.search(r"flights: ([\d,]+) of \1 rows", printed)
        found = re.search(r"qstate (get .*)", printed)
        assert found is not None
        answer = run(*found.group(1).split(), "--format", "json")
        assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
        assert '"carrier": "MQ"' in answer.stdout
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == cli.SUCCESS, errors
    assert "Traceback" not in errors, cause_of(errors)
    assert list(tmp_path.glob("qstate-demo-*")) == []


def test_flights_move_on_the_page_of_the_demo(page: Page, tmp_path: Path) -> None:
    with demo(
        tmp_path, "--parallelism", "1", "--speed", "4", "--ports", "0", "--page-ports", "0", "--serve"
    ) as process:
        printed = lines_until(process, "watch it live in a browser")[-1]
        found = re.search(r"http://127\.0\.0\.1:\d+/#/nycflights", printed)
        assert found is not None
        page.goto(found.group())
        rows = page.locator(".figures div").filter(has_text="Rows/s").locator("span")
        expect(rows).to_have_text(re.compile("[1-9]"), timeout=PAGE_PATIENCE_MS)
        page.get_by_role("link", name="lastTemperature").click()
        page.get_by_role("link", name="JFK").click()
        values = page.get_by_role("table", name="Values").locator("tbody tr")
        expect(values.nth(2)).to_be_visible(timeout=PAGE_PATIENCE_MS)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        expect(page.get_by_role("status")).to_contain_text("connection lost")
    assert "Traceback" not in errors, cause_of(errors)
    assert list(tmp_path.glob("qstate-demo-*")) == []


def test_killed_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--ports", "0") as process:
        lines_until(process, "state is served by the client proxy at")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert "Traceback" not in errors, cause_of(errors)
    assert list(tmp_path.glob("qstate-demo-*")) == []


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(tmp_path, "--days", "2", "--parallelism", "1", "--ports", str(port)) as process:
            output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == cli.ERROR, output
    assert "Traceback" not in errors, cause_of(errors)
    assert errors.strip().splitlines()[-1].startswith("qstate: ")
    assert f"every port of '{port}'" in errors


def test_unknown_backend_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert_one_line_error(run("demo", "--backend", "rocks", TMPDIR=str(tmp_path)), "'rocks'", "heap, rocksdb")
    assert_one_line_error(run("demo", "--ports", "http"), "'http'")
    (tmp_path / "something").touch()
    assert_one_line_error(run("demo", "--work-dir", str(tmp_path)), "not empty")


def test_a_kept_directory_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = _kept_directory(tmp_path / "new" / "kept")
        prepare(kept / "data", first_days=1)
    finally:
        os.umask(before)
    directories = [kept.parent, kept, *(path for path in kept.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}


def test_a_directory_that_others_can_change_is_refused(shared_temporary: Path, other_user: OtherUser) -> None:
    """Spark's settings are in it."""
    (shared_temporary / "open").mkdir()
    (shared_temporary / "open").chmod(0o777)
    (shared_temporary / "link").symlink_to("open")
    for name in ("open", "link"):
        with pytest.raises(ConfigError, match="other users can change"):
            _kept_directory(shared_temporary / name)
    other_user("mkdir -m 755 another")
    with pytest.raises(ConfigError, match=r"(other users can change|cannot be used)"):
        _kept_directory(shared_temporary / "another")


def test_a_place_that_is_no_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file cannot be used"):
        _kept_directory(tmp_path / "file")
