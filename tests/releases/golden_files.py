"""What each release left behind: checkpoints and savepoints of both backends, subscriptions' tokens, frames, names.

A release adds a folder of its name: `PYTHONPATH=.:conformance python tests/releases/golden_files.py` writes it, with
the version that `qstate` says. The folders of earlier releases are never written again.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qstate
from qstate.checkpoint import open_source, read_entries, read_operator_state, write_savepoint
from qstate.client import QueryableStateClient
from qstate_conformance import corpus
from tests.checkpoint.golden_files import pack, unpack
from tests.releases.program import EveryKind
from tests.releases.public_names import public_names
from tests.runtime.job.running_job import JOB, QUERY, RunningJob
from tests.runtime.job.test_checkpoints import epoch_of_all

__all__ = ["BACKENDS", "FRAMES", "LAST", "NAMES", "TOKEN_EPOCH", "WHATS", "commit", "entries_in", "releases", "unpack"]

HERE = Path(__file__).parent
BACKENDS = ("heap", "rocksdb")
#: What a folder has of each backend.
WHATS = ("checkpoint", "savepoint")
FRAMES = "frames.json"
NAMES = "names.txt"
#: The last epoch that is final, and the one at which the subscription's token was taken.
LAST, TOKEN_EPOCH = 5, 3


def releases() -> list[Path]:
    """The folder of each release."""
    return sorted(path for path in HERE.iterdir() if path.name[:1].isdigit())


def commit(job: RunningJob, epoch: int) -> None:
    """An epoch that gives every key the amount `epoch + 1`."""
    epoch_of_all(job, epoch, epoch + 1)
    job.manager.finalize(QUERY, epoch)


def entries_in(location: Path) -> str:
    """All state that a location holds, as text."""
    source = open_source(str(location))
    found: Iterator[Any] = iter([*read_entries(source, "it"), *read_operator_state(source, "it")])
    return "".join(sorted(f"{entry}\n" for entry in found))


def write_state(backend: str, target: Path) -> None:
    """Run a job with this backend to its sixth epoch, and put what it leaves behind into the folder."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "checkpoint"
        settings = {"backend": backend, "checkpoint_dir": str(root), "parallelism": 2, "log_dir": f"{place}/logs"}
        job = RunningJob(EveryKind(), snapshot_interval=3, **settings)
        try:
            for epoch in range(LAST + 1):
                commit(job, epoch)
                job.wait_for_snapshots()
                if epoch == TOKEN_EPOCH:
                    token = _token(job)
        finally:
            job.stop()
        write_savepoint(open_source(str(root)), Path(place) / "savepoint")
        for what in WHATS:
            pack(Path(place) / what, target / what)
        (target / "token.txt").write_text(f"{token}\n")
        (target / "entries.txt").write_text(entries_in(root))


def _token(job: RunningJob) -> str:
    with (
        QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client,
        client.subscribe(JOB, "totalAmount") as subscription,
    ):
        complete, token = -1, None
        while complete < TOKEN_EPOCH or token is None:
            batch = subscription.next_batch(30.0)
            assert batch is not None
            complete, token = batch.complete, batch.token
    return token


def main() -> None:
    target = HERE / qstate.__version__
    target.mkdir()
    for backend in BACKENDS:
        write_state(backend, target / backend)
    (target / NAMES).write_text("".join(f"{name}\n" for name in public_names()))
    shutil.copy(Path(corpus.__file__).with_name(FRAMES), target / FRAMES)


if __name__ == "__main__":
    main()
