"""Laws of crashes: a process that is really killed, and the instance that is restored from what it had sealed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Change
from qstate_conformance.backend.change_file import read_epochs
from qstate_conformance.backend.child import Child
from qstate_conformance.backend.contents import all_places, check_tables
from qstate_conformance.backend.instances import Instances, sealed
from qstate_conformance.backend.model import Model
from qstate_conformance.backend.scenarios import writes_of_epoch
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import BackendSubject


def _recovered(subject: BackendSubject, log: Path) -> int:
    """Restore a new instance from the log, check its epochs, commit one more, and return the log's last epoch."""
    epochs = list(read_epochs(log))
    assert [epoch for epoch, _ in epochs] == list(range(len(epochs)))
    last, changes, model = len(epochs) - 1, list[Change](), Model()
    writes: list[Write] = []
    for epoch, told in epochs:
        changes += told
        writes += writes_of_epoch(epoch)
    for write in writes:
        write.to_model(model)
    following = writes_of_epoch(last + 1)
    places = all_places(write.place for write in (*writes, *following))
    with Instances(subject) as instances:
        backend = instances.open()
        if epochs:
            backend.restore(last, changes)
        check_tables(backend, model, places)
        backend.begin(last + 1)
        apply(following, backend, model)
        changes += sealed(backend, last + 1)
        check_tables(backend, model, places)
        check_tables(instances.restored(last + 1, changes), model, places)
    return last


@law("B18", "B3")
@pytest.mark.parametrize(("stop", "count"), [("writing", 3), ("committing", 3), ("committed", 3), ("sealed", 4)])
def test_a_killed_process_leaves_the_sealed_epochs(subject: BackendSubject, stop: str, count: int) -> None:
    """A process is killed while it writes, in a commit, before or after the seal: exactly the sealed epochs remain."""
    with tempfile.TemporaryDirectory() as scratch:
        log, directory = Path(scratch) / "log", Path(scratch) / "killed"
        with Child(subject, "work", directory, {"log": str(log), "stop": stop, "epochs": 3}) as child:
            while child.says()["at"] != stop:
                pass
            child.kill()
            # The leftovers of the killed process are still there while the next one works.
            assert _recovered(subject, log) == count - 1


@law("B18", "B3")
@examples(0.03)
@given(after=st.integers(0, 12))
def test_a_process_killed_anywhere_leaves_whole_epochs(subject: BackendSubject, after: int) -> None:
    """A process is killed at any moment: the last epoch that it reported remains, or one more."""
    with tempfile.TemporaryDirectory() as scratch:
        log, directory = Path(scratch) / "log", Path(scratch) / "killed"
        with Child(subject, "work", directory, {"log": str(log), "stop": "never", "epochs": 1_000_000}) as child:
            while child.says()["epoch"] < after:
                pass
            child.kill()
            assert _recovered(subject, log) >= after
