"""Laws of what a job tells: no log, error, statistic, metric, argument or environment of its processes, its standby, a
gateway and the command line has its token, its secret, or a key or value that was asked for; its files are private."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgpack
import psutil
import pytest

from qstate.client import QueryableStateClient
from qstate.errors import QueryError, Unauthenticated
from qstate.protocol.codec import frame
from qstate.runtime.serving.metrics import MetricsServer
from tests.cli.test_command_line import run
from tests.gateway.running_gateway import running_gateway
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]
STATE = "totalAmount"
TOKEN, WRONG = "hush-a-token-of-the-job", "hush-a-token-that-is-wrong"
KEY, VALUE = "hush-a-key", 7731773177317731


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory for everything of the test, whose processes have no umask."""
    directory = Path(tempfile.mkdtemp(prefix="qstate-told-"))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    before = os.umask(0)
    yield directory
    os.umask(before)
    shutil.rmtree(directory)


def asked(proxy: tuple[str, int], told: list[str]) -> None:
    """Ask in every way, rightly and wrongly; keep the texts of errors that name no key."""
    with QueryableStateClient(*proxy, token=TOKEN, timeout_s=10) as client:
        assert client.get(JOB, STATE, KEY).get() == VALUE
        assert [entry.key for entry in client.scan(JOB, STATE, isolation="committed")] == [KEY]
        with client.subscribe(JOB, STATE, KEY) as changes:
            assert [change.value for change in changes.next_batch(10) or ()] == [VALUE]
        told += [repr(client), repr(client.locate(JOB, STATE)), str(client.states(JOB))]
        for names in ((JOB, "no such state"), ("no such job", STATE)):
            with pytest.raises(QueryError) as failed:
                client.get(*names, KEY)
            told.append(str(failed.value))
        with suppress(QueryError):
            client.get(JOB, STATE, (KEY, VALUE))
    with pytest.raises(Unauthenticated) as refused, QueryableStateClient(*proxy, token=WRONG) as client:
        client.jobs()
    told.append(str(refused.value))


def attacked(address: tuple[str, int]) -> None:
    """Send what no client sends, with secrets in it."""
    hello = [1, [1], WRONG.encode(), "client", {}]
    for broken in (
        f"GET /?token={WRONG} HTTP/1.1\r\nAuthorization: Bearer {WRONG}\r\n\r\n".encode(),
        frame(msgpack.packb([*hello[:2], WRONG, *hello[3:]])),
        frame(msgpack.packb([*hello[:1], WRONG, *hello[2:]])),
        frame(msgpack.packb([WRONG, *hello])),
        frame(msgpack.packb({WRONG: hello})),
        frame(msgpack.packb(hello[:3])),
        frame(msgpack.packb([1, [1], (WRONG * 999).encode(), WRONG, {WRONG: WRONG}])),
        frame(WRONG.encode()),
    ):
        with socket.create_connection(address, timeout=10) as sock, suppress(OSError):
            sock.sendall(broken)
            while sock.recv(65536):
                pass


def asked_over_http(url: str, told: list[str]) -> None:
    place = f"{url}/v1/jobs/{JOB}/states/{STATE}"
    for address, token in ((f"{place}/value?key={quote(KEY)}", TOKEN), (f"{place}/value?key={quote(KEY)}", WRONG)):
        with suppress(HTTPError), urlopen(Request(address, headers={"Authorization": f"Bearer {token}"})) as answer:
            assert str(VALUE) in answer.read().decode()
    for address in (f"{place}/value?key={KEY}&token={WRONG}", f"{place}/{WRONG}", f"{url}/{WRONG}?{WRONG}={WRONG}"):
        with pytest.raises(HTTPError) as failed:
            urlopen(address)
        failed.value.close()
    told += [urlopen(f"{url}/metrics").read().decode(), urlopen(f"{url}/healthz").read().decode()]


def processes() -> list[psutil.Process]:
    """This process, and those of the job, which are not its children."""
    here = psutil.Process()
    return [here, *(one for one in psutil.process_iter() if _environment(one).get("TMPDIR") == tempfile.gettempdir())]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        found: dict[str, str] = process.environ()
        return found
    except psutil.Error:
        return {}


def hidden_in(text: str, secrets: list[str]) -> list[str]:
    return [secret for secret in secrets if secret in text]


def test_nothing_that_a_job_tells_has_a_secret_and_its_files_are_its_users(
    job_of: JobOf, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    (temporary / "token").touch(0o600)
    (temporary / "token").write_text(TOKEN)
    with ExitStack() as cleanup:
        job = job_of(
            Totals(),
            checkpoint_dir=str(temporary / "deep" / "checkpoint"),
            log_dir=str(temporary / "logs" / "of jobs"),
            backend="rocksdb",
            snapshot_interval=1,
            standby_replicas=1,
            auth_token=TOKEN,
            audit_log=True,
            log_format="json",
            task_manager_metrics_ports="0",
        )
        cleanup.callback(job.stop)
        key_of_the_secret = job.manager.secret.decode().splitlines()[-3]
        for epoch in range(3):
            job.epoch(epoch, rows_batch((KEY, VALUE if epoch == 0 else 0)))
            job.manager.finalize(QUERY, epoch)
        job.wait_for_snapshots()
        until(lambda: bool(job.manager.standbys()), "the standby is up")
        manager, (standby,) = job.task_manager(), job.manager.standbys()
        assert manager.proxy is not None and standby.proxy is not None
        until(lambda: answers(standby.proxy), "the standby has the state")
        for process in (manager, standby):
            assert process.proxy is not None
            if process is manager:
                asked(process.proxy, told)
            for address in (process.proxy, process.server, (process.host, process.data_port), job.manager.address):
                if address[1]:
                    attacked(address)
        with running_gateway(manager.proxy) as gateway:
            asked_over_http(gateway.url, told)
        where = f"{manager.proxy[0]}:{manager.proxy[1]}"
        answer = run("states", JOB, "--proxy", where, QSTATE_TOKEN_FILE=str(temporary / "token"))
        assert STATE in answer.stdout
        told += [answer.stdout, answer.stderr, run("jobs", "--proxy", where, QSTATE_TOKEN=WRONG).stderr]
        metrics = MetricsServer(lambda: JOB, lambda: job.manager.statistics().processes, bind="127.0.0.1", ports="0")
        cleanup.callback(metrics.close)
        told.append(urlopen("http://{}:{}/metrics".format(*metrics.address)).read().decode())
        told += [str(job.manager.statistics()), repr(job.manager.statistics()), repr(job.ticket()), repr(job.config)]
        for process_of_it in processes():
            told += [" ".join(process_of_it.cmdline()), str(_environment(process_of_it))]
        assert len(processes()) >= 3
        assert_private(temporary)
    told += [caplog.text, *(path.read_text() for path in job.logs())]
    assert any("permitted: " in text and '"audit"' in text for text in told), "the audit log is among it"
    secrets = [TOKEN, WRONG, KEY, str(VALUE), key_of_the_secret]
    assert [(found, text) for text in told if (found := hidden_in(text, secrets))] == []
    (temporary / "token").unlink()
    lasting = [TOKEN.encode(), WRONG.encode(), key_of_the_secret.encode()]
    files = [path for path in temporary.rglob("*") if path.is_file()]
    assert [path for path in files for secret in lasting if secret in path.read_bytes()] == []


def answers(address: tuple[str, int] | None) -> bool:
    assert address is not None
    with QueryableStateClient(*address, token=TOKEN, direct=False) as client:
        try:
            return bool(client.get(JOB, STATE, KEY, isolation="committed").get() == VALUE)
        except QueryError:
            return False


def assert_private(root: Path) -> None:
    """All that is there now is its user's alone. RocksDB's files have the mode of the umask, in such a directory."""
    found = {}
    for path in [root, *root.rglob("*")]:
        with suppress(FileNotFoundError):  # a file of the log that a snapshot has replaced
            found[path] = path.lstat()
    open_to_others = {
        str(path): oct(status.st_mode)
        for path, status in found.items()
        if "rocksdb" not in path.parts and not stat.S_ISSOCK(status.st_mode)
        if stat.S_IMODE(status.st_mode) != (0o700 if stat.S_ISDIR(status.st_mode) else 0o600)
    }
    assert open_to_others == {}
    assert any(path.suffix == ".snapshot" for path in found)
    assert any(path.name == "rocksdb" for path in found) and any(path.suffix == ".log" for path in found)
