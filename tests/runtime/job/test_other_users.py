"""Laws of another user of the host: neither stops, reads nor changes anything of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from qstate.errors import Unauthenticated
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Totals
from tests.runtime.job.other_user import OtherUser, other_user, shared_temporary
from tests.runtime.job.running_job import JOB, RunningJob, kill, rows_batch

__all__ = ["other_user", "shared_temporary"]

JobOf = Callable[..., RunningJob]

#: Modules that a task manager or a snapshot process imports, and that are not in a package.
PLANTED = ("psutil.py", "msgspec.py", "qstate.py", "faulthandler.py")


@pytest.fixture
def exposed_job(
    job_of: JobOf, shared_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunningJob]]:
    """Jobs without a umask, whose files all are below directories that every user can write to."""
    monkeypatch.setenv("TMPDIR", str(shared_temporary))
    root = shared_temporary / "root"
    root.mkdir()
    root.chmod(0o1777)
    before = os.umask(0)
    yield lambda function, **settings: job_of(
        function, checkpoint_dir=str(root / "alerts"), log_dir=str(root / "logs"), **settings
    )
    os.umask(before)


def test_modules_in_the_working_directory_are_not_imported(
    job_of: JobOf, shared_temporary: Path, other_user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may run in /tmp, where every user can put a psutil.py."""
    other_user("; ".join(f'echo \'open("executed-{name}", "w"); 1/0\' > {name}' for name in PLANTED))
    monkeypatch.chdir(shared_temporary)
    job = job_of(Totals(), snapshot_interval=1)
    for epoch in range(3):
        job.epoch(epoch, rows_batch(("a", 1)))
    job.wait_for_snapshots()
    assert list(job.epoch_log().glob("*.snapshot"))
    first = job.task_manager()
    kill(first)
    job.successor_of(first)  # the driver starts this one, a relay the one before
    assert job.totals("a") == {"a": 3}
    assert not list(shared_temporary.glob("executed-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_no_door_of_a_job_opens_for_another_user(
    backend: str, exposed_job: Callable[..., RunningJob], shared_temporary: Path, other_user: OtherUser
) -> None:
    job = exposed_job(Totals(), backend=backend, auth_token="a-token")
    job.epoch(0, rows_batch(("a", 1)))
    found = [path for path in shared_temporary.rglob("*") if path != shared_temporary / "root"]
    assert {"owner.lock", "data.sock", "job.lock"} <= {path.name for path in found}
    assert any(path.suffix == ".log" and path.parent.name == "logs" for path in found)
    for path in found:
        other_user(f"! test -r {shlex.quote(str(path))}; ! test -w {shlex.quote(str(path))}")
    pid = job.task_manager().pid
    other_user(f"! rm -rf {' '.join(shlex.quote(str(path)) for path in found)} 2>/dev/null")
    other_user(
        f"! mv root/alerts root/mine 2>/dev/null; ! kill -9 {pid} 2>/dev/null; ! cat /proc/{pid}/environ 2>/dev/null"
    )
    assert psutil.pid_exists(pid)
    with (
        QueryableStateClient(*job.manager.wait_for_proxy(20)) as client,
        pytest.raises(Unauthenticated),
    ):
        client.get(JOB, "totalAmount", "a")
    assert job.epoch(1, rows_batch(("a", 1))) == [("a", 2)]
