"""Laws of the life cycle: what opening leaves alone, what closing frees, and how use after close fails."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import Isolation
from qstate.errors import SerializationError
from qstate_conformance.backend.child import run_in_child
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.states import KINDS, LIST, MAP, VALUE
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

#: Far more than a use of a closed backend takes on the busiest machine; a hang costs the suite so much.
HANG_S = 20.0


@law("B1")
def test_nothing_is_touched_outside_the_directory(subject: BackendSubject) -> None:
    """A whole life writes nothing outside its directory: not to the working directory, home or temporary files."""
    with tempfile.TemporaryDirectory() as scratch:
        home, directory = Path(scratch) / "home", Path(scratch) / "own"
        home.mkdir()
        touched = run_in_child(subject, "outside", directory, home=home)["touched"]
        assert touched == []
        assert [str(path) for path in home.rglob("*")] == []
        assert {path.name for path in Path(scratch).iterdir()} == {"home", "own", "own.stderr"}


@law("B1")
@pytest.mark.parametrize(
    "name", ["with spaces in it", "k\u00e4se \u98df", "100%d", "a'b\"c", "#1?x=y&z", "-rf", "x" * 200], ids=ascii
)
def test_a_directory_may_have_any_name(subject: BackendSubject, name: str) -> None:
    """A backend works in directories whose names have spaces, quotes, signs of addresses and letters of any script."""
    with tempfile.TemporaryDirectory() as scratch, subject.open(Path(scratch) / name) as backend:
        backend.begin(0)
        backend.table(VALUE).put("k", 1)
        assert len(sealed(backend, 0)) == 1
        backend.finalize(0)
        backend.begin(1)
        backend.table(VALUE).put("k", 2)
        backend.publish()
        assert list(backend.reader(Isolation.LIVE).get(VALUE, None, ["k"]).values) == [b"\x02"]
        backend.rollback()
        assert backend.table(VALUE).get("k") == 1
        assert len(list(backend.entries(ALL))) == 1


@law("B1")
def test_a_new_backend_is_empty(subject: BackendSubject) -> None:
    """A backend that was just opened holds nothing and has nothing to commit."""
    with Instances(subject) as instances:
        backend = instances.open()
        assert list(backend.entries(ALL)) == []
        assert [backend.table(descriptor).get("k") for descriptor in KINDS] == [None] * len(KINDS)
        backend.begin(0)
        assert sealed(backend, 0) == []


@law("B6")
@pytest.mark.parametrize("moment", ["new", "writing", "published", "failed", "sealed", "final"])
def test_close_twice_is_close_once(subject: BackendSubject, moment: str) -> None:
    """`close` works at every moment of an epoch's life, raises nothing, and does nothing when it comes again."""
    with Instances(subject) as instances:
        backend = instances.open()
        if moment != "new":
            backend.begin(0)
            backend.table(VALUE).put("k", 1)
            backend.table(LIST).list_add("k", [1])
        if moment == "published":
            backend.publish()
        if moment == "failed":
            with pytest.raises(SerializationError):  # from the write or from the commit
                backend.table(LIST).list_add("k", [object()])
                sealed(backend, 0)
        if moment in ("sealed", "final"):
            sealed(backend, 0)
        if moment == "final":
            backend.finalize(0)
        for _ in range(3):
            backend.close()


@law("B6")
def test_a_backend_is_a_context_manager(subject: BackendSubject) -> None:
    """`with` closes the backend, also after an error inside, which it lets through."""
    with Instances(subject) as instances:
        with pytest.raises(ZeroDivisionError), instances.open() as backend:
            backend.begin(0)
            raise ZeroDivisionError
        backend.close()


@law("B6", "R4")
def test_use_after_close_is_refused(subject: BackendSubject) -> None:
    """After `close` the backend raises `ClosedError`. Tables and readers raise it or show nothing new; none hangs."""
    with tempfile.TemporaryDirectory() as scratch:
        found = run_in_child(subject, "after_close", Path(scratch) / "own", silence_s=HANG_S)
    assert found["backend"] == dict.fromkeys(found["backend"], "ClosedError")
    held = {"value get": "[1]", "list get": "[1]", "map get": "{'m': 1}"}
    for name, outcome in found["tables"].items():
        allowed = {"ClosedError", "gave None", f"gave {held.get(name)}"}
        assert outcome in allowed, f"{name}: {outcome}"
    for name, outcome in found["timers"].items():
        assert outcome == "ClosedError" or outcome.startswith("gave "), f"{name}: {outcome}"
    for name, outcome in found["readers"].items():
        assert outcome in ("ClosedError", f"gave {found['answers'][name]!r}"), f"{name} reader: {outcome}"


@law("B6")
def test_close_frees_what_was_opened(subject: BackendSubject) -> None:
    """Lives that follow each other in one process leave no more files, threads or processes than the first one did."""
    with tempfile.TemporaryDirectory() as scratch:
        left: list[Any] = run_in_child(subject, "lives", Path(scratch) / "own", count=5)["left"]
    # The first life may leave what a library keeps for the process.
    grown = [more for later in left[2:] for more, first in zip(later, left[1], strict=True) if more > first]
    assert not grown, f"[files, threads, processes] after each life: {left}"


@law("R4")
def test_closing_while_others_read_gives_answers_or_closed_errors(subject: BackendSubject) -> None:
    """Readers in the middle of a query when the backend closes get an answer or `ClosedError`, never a crash."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as scratch:
            ends = run_in_child(subject, "close_while_reading", Path(scratch) / "own", silence_s=HANG_S)["ends"]
        assert ends == ["ok"] * len(ends)


@law("B6", "B1")
def test_the_scratch_directory_may_go_after_close(subject: BackendSubject) -> None:
    """The caller may remove the directory after `close`; a new instance elsewhere does not miss it."""
    with Instances(subject) as instances:
        directory = instances.directory()
        backend = subject.open(directory)
        backend.table(VALUE)
        backend.begin(0)
        backend.table(VALUE).put("k", 1)
        changes = sealed(backend, 0)
        backend.close()
        shutil.rmtree(directory)
        other = instances.restored(0, changes)
        assert other.table(VALUE).get("k") == 1
        assert list(other.reader(Isolation.LIVE).get(MAP, None, ["k"]).values) == [None]


@law("R4", "B6")
def test_a_closed_backend_leaves_others_open(subject: BackendSubject) -> None:
    """Closing one backend of a process closes no other, nor the readers of another."""
    with opened(subject) as backend, Instances(subject) as instances:
        backend.table(VALUE).put("k", 1)
        sealed(backend, 0)
        reader = backend.reader(Isolation.LIVE)
        for _ in range(3):
            instances.open().close()
        assert list(reader.get(VALUE, None, ["k"]).values) == [b"\x01"]
        assert backend.table(VALUE).get("k") == 1
