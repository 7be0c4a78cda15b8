"""Files whose checksums are right and whose contents are not: nothing but clear errors, and `verify` finds them all.

What `verify` calls sound can be dumped, taken into a savepoint and restored by the program that it was made by.
"""

from __future__ import annotations

import io
import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.checkpoint import open_source, verify, write_savepoint
from qstate.checkpoint.log.operator_state import Distribution, OperatorList
from qstate.checkpoint.manifest import write_final
from qstate.checkpoint.storage.locations import directory_of
from qstate.cli import main as cli
from qstate.config import JobConfig
from qstate.descriptors import ListStateDescriptor
from qstate.errors import CheckpointError, JobError, QStateError
from qstate.evolution import StateSchema
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.operator_spec import OperatorSpec
from qstate.runtime.tasks.subtask_place import Restart, SubtaskPlace
from qstate.runtime.tasks.subtask_restore import restore_subtask
from tests.checkpoint.checkpoints import (
    DESCRIPTORS,
    MAX_PARALLELISM,
    QUERY,
    UID,
    Reversed,
    StoredJob,
    changes_of,
    fillers,
)
from tests.checkpoint.forged import ForgedDirectory, ForgedFile, RawBytes, places, replaced

LAST = 5
HOLDS_NOTHING = "holds no committed state yet"
GETTERS = {"total": "get_state", "last": "get_list_state", "visits": "get_map_state", "secret": "get_state"}


class Tolerant(Reversed):
    """Reads whatever it is given: what a serializer of the user's own cannot read is no matter of the file's."""

    def loads(self, data: bytes) -> object:
        return data[::-1].decode(errors="replace")


class Program(KeyedProcessFunction):
    """Asks for the states that are stored."""

    def open(self, context: Any) -> None:
        for descriptor in DESCRIPTORS:
            if descriptor.serializer.name == Reversed.name:
                descriptor = replace(descriptor, serializer=Tolerant())
            getattr(context, GETTERS[descriptor.name])(descriptor)
        context.get_operator_list_state(ListStateDescriptor("position", int))

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        yield from ()


def noted(epoch: int) -> list[OperatorList]:
    schema = StateSchema.of(ListStateDescriptor("position", int)).to_plain()
    return [OperatorList(schema, Distribution.SPLIT, (b"\x01", bytes([epoch])))]


def write(root: Path) -> Path:
    """A checkpoint with all that there is: outputs, whole and partial snapshots, operator state, and a savepoint."""
    job = StoredJob(root / "checkpoint", parallelism=1)
    for epoch in range(LAST + 1):
        changes = [*changes_of(epoch), *(fillers() if epoch == 0 else ())]
        job.logs[0].drop_output(before_epoch=epoch)
        job.logs[0].seal(epoch, changes, [b"frame"], operator_state=noted(epoch))
        if epoch in (1, 3):
            job.snapshot(whole_bytes=0, retained=1)
    write_final(job.root, {QUERY: LAST - 1})
    write_savepoint(open_source(str(job.root)), root / "savepoint")
    return root


@pytest.fixture(scope="module", autouse=True)
def deep_enough() -> None:
    """Raise the recursion limit as the command does: Hypothesis objects when that happens in one of its tests."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), cli.DEEPEST))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("written"))


def command(*arguments: str) -> tuple[int, str]:
    """A command's exit code and what it said; a traceback is the test's failure."""
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(["checkpoint", *arguments])
    return code, err.getvalue()


def restore(root: Path, backend: str) -> None:
    """Open the subtask as a task manager does."""
    schema = pa.schema([("key", pa.string())])
    spec = OperatorSpec(
        uid=UID, job="job", function=Program(), key_columns=("key",), input_schema=schema, output_schema=schema
    )
    with tempfile.TemporaryDirectory() as scratch:
        place = SubtaskPlace(
            "job",
            0,
            1,
            JobConfig(parallelism=1, max_parallelism=MAX_PARALLELISM, backend=backend, snapshot_interval=0),
            directory_of(root),
            "",
            0,
            Path(scratch),
        )
        parts = restore_subtask(lambda: spec, place, Restart(LAST - 1, LAST))
        with parts.resources:
            latest = parts.log.latest()
            assert latest is not None
            list(parts.log.output(latest))


def told(call: Callable[[], object], location: Path) -> QStateError | None:
    """The error of a call, if it is one of qstate's own; any other fails the test."""
    try:
        call()
    except QStateError as exc:
        assert not isinstance(exc, CheckpointError) or str(location) in str(exc), exc
        return exc
    return None


def examine(location: Path, *, backend: str = "heap") -> bool:
    """Whether `verify` calls it sound. Everything else must be as that says."""
    found: list[str] = []

    def look() -> None:
        found.extend(one.damage for one in verify(str(location)) if one.damage is not None)

    sound = told(look, location) is None and not found
    assert all(str(location) in damage for damage in found), found
    for arguments in (("dump",), ("dump", "--format", "msgpack"), ("show", "--key-groups", "--epochs")):
        code, said = command(arguments[0], str(location), *arguments[1:])
        assert code == cli.SUCCESS or (code == cli.ERROR and said.startswith("qstate: ")), said
        assert code == cli.SUCCESS or not sound, (arguments, said)
    with tempfile.TemporaryDirectory() as target:
        failed = told(lambda: write_savepoint(open_source(str(location)), Path(target)), location)
    assert failed is None or not sound or HOLDS_NOTHING in str(failed), failed
    if location.name == "checkpoint":
        failed = told(lambda: restore(location, backend), location)
        assert failed is None or not sound or type(failed) is JobError, failed
    return sound


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_what_was_written_is_sound(written: Path, tmp_path: Path, backend: str) -> None:
    shutil.copytree(written, tmp_path / "copy")
    for kind in ("checkpoint", "savepoint"):
        assert examine(tmp_path / "copy" / kind, backend=backend)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_is_put_together_again_unchanged_is_sound(written: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(written / kind, tmp_path / kind)
    ForgedDirectory(tmp_path / kind).write()
    assert examine(tmp_path / kind)


DEEP = RawBytes(b"\x91" * 100_000 + b"\xc0")
WIDE = RawBytes(b"\xdd\x00\x00\xff\xff" * 1000)
NASTY: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 8, 255, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.5, math.nan, math.inf, "", "x", "totals", "epoch", "writer", "snapshot", "zstd", "../x", "\x00", "total"),
    *(b"", b"\xc0", b"\xc1", b"\xa1", b"\xa3key", b"\x92\x01", b"\x91\xc4\x01x", b"\xc7\x01\x02x", b"\xff" * 40),
    *([], [[]], [None], [1, 2], [[1, 2]], {}, {"x": 1}, {1: 2}, [{}], DEEP, WIDE, RawBytes(b"\xc1"), RawBytes(b"")),
]
CHANGES: dict[str, Callable[[random.Random, Any], Any]] = {
    "replace": lambda chance, _: chance.choice(NASTY),
    "remove": lambda *_: ...,
    "add": lambda chance, plain: [*plain, chance.choice(NASTY)] if isinstance(plain, list) else chance.choice(NASTY),
    "double": lambda _, plain: [*plain, *plain] if isinstance(plain, list) else plain,
    "reverse": lambda _, plain: plain[::-1] if isinstance(plain, list | str | bytes) else plain,
    "nudge": lambda chance, plain: _nudged(chance, plain),
}


def _nudged(chance: random.Random, plain: Any) -> Any:
    if type(plain) is int:
        return max(plain + chance.choice([-1, 1, 100]), -(2**63))
    if isinstance(plain, bytes) and plain:
        at = chance.randrange(len(plain))
        return plain[:at] + bytes([plain[at] ^ (1 << chance.randrange(8))]) + plain[at + 1 :]
    if isinstance(plain, str):
        return plain + "x"
    return plain


def forge(root: Path, seed: int) -> str:
    """Change one thing in one file; gives what it was."""
    chance = random.Random(seed)
    directory = ForgedDirectory(root)
    name = chance.choice(sorted(directory.files))
    file = directory.files[name]
    section = chance.choice(["header", "footer", "body", "body"]) if isinstance(file, ForgedFile) else ""
    plain = getattr(file, section) if section else file
    place = chance.choice(places(plain))
    how = chance.choice(sorted(CHANGES))
    if how == "remove" and not place:
        how = "replace"
    changed = replaced(plain, place, lambda part: CHANGES[how](chance, part))
    if section == "body" and (not isinstance(changed, list) or file.kind != 2):
        return "nothing"
    if section:
        setattr(file, section, changed)
    elif isinstance(changed, dict) and not _raw(changed):
        directory.files[name] = changed
    else:
        return "nothing"
    directory.write()
    return f"{name} {section} {place} {how}"


def _raw(plain: Any) -> bool:
    """Whether JSON cannot hold it."""
    try:
        json.dumps(plain)
    except TypeError:
        return True
    return False


@given(kind=st.sampled_from(["checkpoint", "savepoint"]), seed=st.integers(0, 1 << 32))
def test_what_was_changed_is_found_or_does_no_harm(written: Path, kind: str, seed: int) -> None:
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(written / kind, Path(copy) / kind)
        forge(Path(copy) / kind, seed)
        examine(Path(copy) / kind, backend="rocksdb" if seed % 8 == 0 else "heap")
