"""Today's code reads what each release wrote, and continues from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import verify
from qstate.client import QueryableStateClient
from qstate.protocol import messages
from qstate.protocol.codec import decode
from qstate_conformance.corpus import value_of
from tests.releases.golden_files import (
    BACKENDS,
    FRAMES,
    LAST,
    TOKEN_EPOCH,
    WHATS,
    commit,
    entries_in,
    releases,
    unpack,
)
from tests.releases.program import EveryKind
from tests.runtime.job.running_job import JOB, RunningJob

KEY = "key 7"
each_release = pytest.mark.parametrize("release", releases(), ids=lambda path: path.name)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def test_there_are_releases() -> None:
    assert "0.1.0" in [path.name for path in releases()]


@each_release
@each_backend
@pytest.mark.parametrize("what", WHATS)
def test_checkpoints_and_savepoints_are_sound_and_read(release: Path, backend: str, what: str, tmp_path: Path) -> None:
    unpack(release / backend / what, tmp_path / what)
    assert {file.damage for file in verify(str(tmp_path / what))} == {None}
    assert entries_in(tmp_path / what) == (release / backend / "entries.txt").read_text()


@each_release
@each_backend
def test_a_job_continues_with_another_backend_and_parallelism(release: Path, backend: str, tmp_path: Path) -> None:
    """The subscription's token, too, continues at the epoch after its own."""
    unpack(release / backend / "checkpoint", tmp_path / "checkpoint")
    (other,) = set(BACKENDS) - {backend}
    token = (release / backend / "token.txt").read_text().strip()
    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path / "checkpoint"), "log_dir": str(tmp_path / "logs")}
    job = RunningJob(EveryKind(), backend=other, parallelism=1, **settings)
    try:
        commit(job, LAST + 1)
        with QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client:
            found = {name: _contents(client.get(JOB, name, KEY)) for name in _STATES}
            with client.subscribe(JOB, "totalAmount", token=token) as subscription:
                batches = []
                while not batches or batches[-1].complete <= LAST:
                    batch = subscription.next_batch(30.0)
                    assert batch is not None
                    batches.append(batch)
    finally:
        job.stop()
    amounts = list(range(1, LAST + 3))
    assert found.pop("counts").keys() == {f"amount {amount}" for amount in amounts}
    assert found == {
        "lastAmount": amounts[-1],
        "amounts": amounts,
        "totalAmount": sum(amounts),
        "meanAmount": sum(amounts) / len(amounts),
        "lastText": f"text {amounts[-1]}",
    }
    changes = {change.epoch: change.value for batch in batches for change in batch if change.key == KEY}
    assert changes == {epoch: sum(range(1, epoch + 2)) for epoch in range(TOKEN_EPOCH + 1, LAST + 2)}


_STATES = ("lastAmount", "amounts", "counts", "totalAmount", "meanAmount", "lastText")


def _contents(view: Any) -> Any:
    assert view is not None
    return view.contents()


@each_release
def test_frames_are_read_with_their_meaning(release: Path) -> None:
    corpus = json.loads((release / FRAMES).read_text())
    for entry in corpus["frames"] + corpus["accepted"]:
        message = getattr(messages, entry["type"])(**value_of(entry["fields"]))
        assert decode(bytes.fromhex(entry["frame"])[4:]) == message, entry["name"]
