"""`qstate checkpoint show | dump | verify` and `qstate savepoint` on real files, in processes of their own."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qstate.checkpoint import Savepoint, open_source, read_entries, read_operator_state
from qstate.checkpoint.log.operator_state import Distribution, OperatorList
from qstate.checkpoint.manifest import JobManifest, write_final
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.cli import main as cli
from qstate.descriptors import ListStateDescriptor
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange, key_group
from qstate.runtime.job.directory_owner import OwnerByLock
from tests.checkpoint.checkpoints import (
    KEYS,
    MAX_PARALLELISM,
    QUERY,
    UID,
    Reversed,
    StoredJob,
    changes_of,
    state_after,
)
from tests.cli.test_command_line import ROOT, assert_one_line_error, run
from tests.project.test_public_surface import OPTIONAL

LAST = 9


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory with snapshots, and a savepoint of it."""
    root = tmp_path_factory.mktemp("stored")
    job = StoredJob(root / "checkpoint")
    job.run(range(4))
    job.snapshot()
    job.run(range(4, LAST + 1))
    assert run("savepoint", str(root / "checkpoint"), str(root / "savepoint")).returncode == 0
    return root


@pytest.fixture
def stored(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(written, tmp_path / "copy"))


def lines(*arguments: str) -> list[dict[str, Any]]:
    answer = run("checkpoint", "dump", *arguments)
    assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
    return [json.loads(line) for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("what", ["checkpoint", "savepoint"])
def test_show_prints_states_and_sizes(written: Path, what: str) -> None:
    shown = json.loads(run("checkpoint", "show", str(written / what), "--format", "json", "--key-groups").stdout)
    assert (shown["kind"], shown["job"], shown["max_parallelism"]) == (what, "job", MAX_PARALLELISM)
    (operator,) = shown["operators"]
    assert (operator["uid"], operator["query"], operator["epoch"]) == (UID, QUERY, LAST)
    wanted = state_after(LAST)
    for state in operator["states"]:
        held = {place: data for place, data in wanted.items() if place[0] == state["name"]}
        assert state["entries"] == len(held) > 0
        assert state["bytes"] == sum(sum(map(len, place[1:])) + len(data) for place, data in held.items())
    assert {state["name"]: state["queryable_name"] for state in operator["states"]}["total"] == "totalAmount"
    groups = {group["key_group"]: group["entries"] for group in operator["key_groups"]}
    assert sum(groups.values()) == len(wanted)
    assert set(groups) == {key_group(key, MAX_PARALLELISM) for key in KEYS}


def test_show_prints_readable_tables(written: Path) -> None:
    text = run("checkpoint", "show", str(written / "checkpoint"), "--epochs").stdout
    assert "checkpoint directory of job 'job'" in text
    assert f"epoch {LAST} is final" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  total ")]
    assert row[:5] == ["total", "value", "totalAmount", "int", "msgpack"]
    (row,) = [line.split() for line in text.splitlines() if "1 of 2" in line]
    assert row == ["1", "of", "2", "4-7", f"0-{LAST}", "3", "-"]
    assert "savepoint of job 'job', created 20" in run("checkpoint", "show", str(written / "savepoint")).stdout


def test_show_prints_the_files_of_the_newest_snapshot(tmp_path: Path) -> None:
    job = StoredJob(tmp_path, parallelism=1)
    for epoch in range(2):
        job.run([epoch], filled=epoch == 0)
        job.snapshot(whole_bytes=0)
    (operator,) = json.loads(run("checkpoint", "show", str(tmp_path), "--epochs", "--format", "json").stdout)[
        "operators"
    ]
    (subtask,) = operator["subtasks"]
    names = ["000000000002.snapshot", "000000000003.snapshot"]
    assert subtask["stack"] == [
        {"file": name, "epoch": epoch, "bytes": (job.directory(0) / name).stat().st_size, "since": since}
        for epoch, (name, since) in enumerate(zip(names, [None, names[0]], strict=True))
    ]
    text = run("checkpoint", "show", str(tmp_path), "--epochs").stdout
    rows = [line.split() for line in text.splitlines() if ".snapshot" in line]
    assert [row[1:3] + row[4:] for row in rows] == [
        [names[0], "0", "all"],
        [names[1], "1", "changes", "since", names[0]],
    ]


@pytest.mark.parametrize("what", ["checkpoint", "savepoint"])
def test_dump_is_the_state(written: Path, what: str) -> None:
    found = lines(str(written / what))
    assert len(found) == len(state_after(LAST))
    values = {(one["state"], str(one["namespace"]), one["key"], one.get("map_key")): one for one in found}
    assert values["total", "None", "key 9", None] == {
        "operator": UID,
        "state": "total",
        "namespace": None,
        "key": "key 9",
        "group": key_group("key 9", MAX_PARALLELISM),
        "value": 9,
    }
    assert values["total", "['day', 1]", "key 9", None]["value"] == -9
    assert values["last", "None", "key 9", None]["value"] == [0.0, 1.5, 3.0, 4.5]
    assert values["visits", "None", "key 9", 1]["value"] == 9
    assert values["secret", "None", "key 8", None]["bytes"] == "dGVyY2Vz"


def test_dump_is_in_the_neutral_order_and_the_same_from_both(written: Path) -> None:
    checkpoint, savepoint = (lines(str(written / what)) for what in ("checkpoint", "savepoint"))
    assert checkpoint == savepoint
    groups = [one["group"] for one in checkpoint]
    assert groups == sorted(groups)


def test_dump_accepts_selections_and_older_epochs(written: Path) -> None:
    location = str(written / "checkpoint")
    every = lines(location)
    assert lines(location, "--operator", UID, "--state", "visits") == [one for one in every if one["state"] == "visits"]
    assert lines(location, "--key-groups", "2-5") == [one for one in every if 2 <= one["group"] <= 5]
    assert lines(location, "--key-groups", "3") == [one for one in every if one["group"] == 3]
    assert len(lines(location, "--epoch", "5")) == len(state_after(5))


def test_dump_in_messagepack_has_the_stored_bytes(written: Path) -> None:
    location = str(written / "savepoint")
    answer = subprocess.run(
        [sys.executable, "-m", "qstate.cli.main", "checkpoint", "dump", location, "--format", "msgpack"],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = list(msgpack.Unpacker(io.BytesIO(answer.stdout)))
    for one in found:
        one["bytes" if one["state"] == "secret" else "value"]
    assert [(one["state"], one["key"], one.get("value")) for one in found] == [
        (one["state"], one["key"], one.get("value")) for one in lines(location)
    ]


def test_new_history_is_given_to_a_stopped_job(stored: Path) -> None:
    root = stored / "checkpoint"
    lock = OwnerByLock(DurableDirectory(root))
    assert_one_line_error(run("checkpoint", "new-history", str(root)), f"{root} is in use by another running job")
    lock.close()
    answer = run("checkpoint", "new-history", str(root))
    assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
    assert answer.stdout.startswith(f"the epochs of job 'job' in {root} have a new history: ")
    manifest = JobManifest.read(root)
    assert manifest is not None and manifest.history is not None


def test_python_reads_the_same_entries(written: Path) -> None:
    source = open_source(str(written / "checkpoint"))
    found = list(read_entries(source, UID, key_groups=KeyGroupRange(0, 4)))
    assert [(one.state, one.key, one.group) for one in found] == [
        (one["state"], one["key"], one["group"]) for one in lines(source.location, "--key-groups", "0-3")
    ]
    assert {one.decoded for one in found if one.state == "secret"} == {False}


def noted(epoch: int, subtask: int) -> list[OperatorList]:
    position = ListStateDescriptor("position", int)
    secret = ListStateDescriptor("secret list", str, serializer=Reversed())
    return [
        OperatorList(StateSchema.of(position).to_plain(), Distribution.SPLIT, (msgpack.packb(10 * epoch + subtask),)),
        OperatorList(StateSchema.of(secret).to_plain(), Distribution.UNION, (b"terces", b"")),
    ]


@pytest.fixture(scope="module")
def with_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory of an operator with operator state, and a savepoint of it."""
    root = tmp_path_factory.mktemp("lists")
    job = StoredJob(root / "checkpoint")
    for epoch in range(3):
        for subtask, log in enumerate(job.logs):
            log.seal(epoch, changes_of(epoch)[:1] if subtask == 0 else [], operator_state=noted(epoch, subtask))
    write_final(job.root, {QUERY: 2})
    assert run("savepoint", str(root / "checkpoint"), str(root / "savepoint")).returncode == 0
    return root


@pytest.mark.parametrize("what", ["checkpoint", "savepoint"])
def test_operator_state_is_shown_and_dumped(with_lists: Path, what: str) -> None:
    location = str(with_lists / what)
    (operator,) = json.loads(run("checkpoint", "show", location, "--format", "json").stdout)["operators"]
    assert [
        (one["name"], one["distribution"], one["value_type"], one["elements"], one["bytes"])
        for one in operator["operator_states"]
    ] == [("position", "split", "int", 2, 2), ("secret list", "union", "str", 4, 12)]
    text = run("checkpoint", "show", location).stdout
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  position ")]
    assert row == ["position", "split", "int", "msgpack", "2", "2"]
    found = lines(location, "--state", "position")
    common = {"operator": UID, "state": "position", "distribution": "split"}
    assert found == [{**common, "subtask": 0, "value": 20}, {**common, "subtask": 1, "value": 21}]
    assert [one["bytes"] for one in lines(location, "--state", "secret list")] == ["dGVyY2Vz", ""] * 2
    assert all("subtask" not in one for one in lines(location, "--key-groups", "0-7")), "it is of no key group"
    assert [one["subtask"] for one in lines(location) if "subtask" in one] == [0, 0, 0, 1, 1, 1]


def test_operator_state_in_messagepack_has_the_stored_bytes(with_lists: Path) -> None:
    location = str(with_lists / "checkpoint")
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "qstate.cli.main",
            "checkpoint",
            "dump",
            location,
            "--format",
            "msgpack",
            "--epoch",
            "1",
        ],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = [one for one in msgpack.Unpacker(io.BytesIO(answer.stdout)) if "subtask" in one]
    common = {"operator": UID, "state": "position", "distribution": "split"}
    assert found[0] == {**common, "subtask": 0, "value": 10}
    assert [one.get("bytes") for one in found if one["state"] == "secret list"] == [b"terces", b""] * 2
    read = list(read_operator_state(open_source(location), UID, epoch=1))
    assert [(one.subtask, one.value, one.decoded) for one in read if one.state == "position"] == [
        (0, 10, True),
        (1, 11, True),
    ]
    assert {one.decoded for one in read if one.state == "secret list"} == {False}


def test_a_closed_pipe_is_no_error(written: Path) -> None:
    command = f"{sys.executable} -m qstate.cli.main checkpoint dump {written / 'savepoint'} | head -n 1"
    answer = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    assert answer.stderr == ""
    assert json.loads(answer.stdout)["operator"] == UID


@pytest.mark.parametrize("what", ["checkpoint", "savepoint"])
def test_verify_reports_nothing_without_damage(written: Path, what: str) -> None:
    answer = run("checkpoint", "verify", str(written / what), "--format", "json")
    found = json.loads(answer.stdout)
    paths = [path for path in (written / what).rglob("*") if path.is_file()]
    assert (answer.returncode, found["damaged"]) == (0, [])
    assert (found["files"], found["bytes"]) == (len(paths), sum(path.stat().st_size for path in paths))


def files_that_count(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["flipped", pytest.param("cut", marks=pytest.mark.soak)])
def test_verify_names_every_damaged_file(stored: Path, how: str) -> None:
    for name in files_that_count(stored):
        path = stored / name
        sound = path.read_bytes()
        damaged = bytearray(sound)
        damaged[len(sound) // 2] ^= 1
        path.write_bytes(bytes(damaged) if how == "flipped" else sound[:-1])
        answer = run("checkpoint", "verify", str(stored / name.parts[0]))
        assert answer.returncode == cli.NO, name
        assert f"DAMAGED: {path}" in answer.stdout
        path.write_bytes(sound)


def test_verify_reports_missing_files(stored: Path) -> None:
    newest = max(stored.glob("checkpoint/*/*/00001/*.log"))
    newest.unlink()
    answer = run("checkpoint", "verify", str(stored / "checkpoint"))
    assert answer.returncode == cli.NO
    assert f"up to epoch {LAST - 1}, but epoch {LAST} was committed" in answer.stdout
    (stored / "savepoint" / "0001.savepoint").unlink()
    answer = run("checkpoint", "verify", str(stored / "savepoint"))
    assert answer.returncode == cli.NO
    assert "0001.savepoint is missing" in answer.stdout


def test_verify_ignores_void_files(stored: Path) -> None:
    newest = max(stored.glob("checkpoint/*/*/00001/*.log"))
    newest.write_bytes(b"QSTATEL1")
    assert run("checkpoint", "verify", str(stored / "checkpoint")).returncode == cli.NO
    job = StoredJob(stored / "checkpoint")  # opens the logs, as a job that starts does
    job.logs[1].seal(LAST, [])
    assert run("checkpoint", "verify", str(stored / "checkpoint")).returncode == cli.SUCCESS


def test_savepoint_prints_what_it_wrote(written: Path, tmp_path: Path) -> None:
    answer = run("savepoint", str(written / "checkpoint"), str(tmp_path / "savepoint"))
    entries = len(state_after(LAST))
    assert answer.stdout.splitlines() == [
        f"operator {UID!r}: {entries} entries as of epoch {LAST}",
        f"savepoint of job 'job' in {tmp_path / 'savepoint'}",
    ]
    assert answer.stderr == f"{UID}: {entries} entries, 100%\n"
    savepoint = Savepoint.read(tmp_path / "savepoint")
    assert savepoint is not None and savepoint.entries(UID) == entries


def test_savepoint_of_an_earlier_epoch_than_the_committed_one_warns(stored: Path, tmp_path: Path) -> None:
    newest = max(stored.glob("checkpoint/*/*/00001/*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    answer = run("savepoint", str(stored / "checkpoint"), str(tmp_path / "savepoint"))
    assert answer.returncode == cli.SUCCESS
    assert f"as of epoch {LAST - 1}" in answer.stdout
    assert f"warning: epoch {LAST} of operator {UID!r} was committed" in answer.stderr


@pytest.mark.parametrize("rich", [True, False])
def test_terminal_shows_progress(written: Path, tmp_path: Path, rich: bool) -> None:
    """With rich a bar, without it a line."""
    without = "" if rich else "sys.modules['rich'] = None"
    code = f"import sys\n{without}\nfrom qstate.cli import main as cli\nsys.exit(cli.main())"
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code, "savepoint", str(written / "checkpoint"), str(tmp_path / "savepoint")],
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        )
    finally:
        os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "100%" in shown
    assert ("━" in shown) == rich


@pytest.mark.parametrize(("command", "counted"), [("verify", "files"), ("show", f"entries of operator {UID!r}")])
def test_terminal_shows_how_far_the_reading_is(written: Path, command: str, counted: str) -> None:
    """A short reading is over before it would be shown."""
    code = (
        "import sys\nfrom qstate.cli.output import progress\nprogress.BAR_INTERVAL_S = 0\n"
        "from qstate.cli import main as cli\nsys.exit(cli.main(sys.argv[1:]))"
    )
    ours, theirs = pty.openpty()
    try:
        answer = subprocess.run(
            [sys.executable, "-c", code, "checkpoint", command, str(written / "checkpoint")],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        )
    finally:
        os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert f" {counted}" in shown and shown.endswith("\r\x1b[K")
    assert b"\x1b" not in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["checkpoint", "show", "{root}/nothing"], ["neither a savepoint", "nor a checkpoint directory"]),
        (["checkpoint", "verify", "{root}/nothing"], ["neither a savepoint"]),
        (["checkpoint", "dump", "{root}/checkpoint", "--operator", "other"], ["no operator 'other'", f"has '{UID}'"]),
        (
            ["checkpoint", "dump", "{root}/checkpoint", "--state", "other"],
            ["unknown state 'other'", "last, secret, total"],
        ),
        (["checkpoint", "dump", "{root}/checkpoint", "--key-groups", "5-8"], ["0 to 7", "'5-8'"]),
        (["checkpoint", "dump", "{root}/checkpoint", "--key-groups", "all"], ["a number or A-B", "'all'"]),
        (["checkpoint", "dump", "{root}/checkpoint", "--epoch", "10"], ["as of epoch 10", "newest epoch is 9"]),
        (["checkpoint", "dump", "{root}/savepoint", "--epoch", "8"], ["as of epoch 8"]),
        (["savepoint", "{root}/checkpoint", "{root}/savepoint"], ["is not empty"]),
        (["savepoint", "{root}/nothing", "{root}/new"], ["neither a savepoint"]),
    ],
)
def test_an_error_is_one_line(written: Path, arguments: list[str], parts: list[str]) -> None:
    assert_one_line_error(run(*(argument.format(root=written) for argument in arguments)), *parts)


def test_damage_during_a_dump_is_one_line(stored: Path) -> None:
    path = stored / "savepoint" / "0001.savepoint"
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"secret", 1200)] ^= 1
    path.write_bytes(damaged)
    assert_one_line_error(run("checkpoint", "dump", str(stored / "savepoint")), str(path), "damaged")


def test_the_core_packages_are_enough(written: Path, tmp_path: Path) -> None:
    code = (
        f"import sys\nfor name in {OPTIONAL!r}: sys.modules[name] = None\nfrom qstate.cli import main as cli\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    for command in (
        ["checkpoint", "show", str(written / "checkpoint")],
        ["checkpoint", "dump", str(written / "savepoint")],
        ["checkpoint", "verify", str(written / "checkpoint")],
        ["savepoint", str(written / "checkpoint"), str(tmp_path / "savepoint")],
    ):
        answer = subprocess.run(
            [sys.executable, "-c", code, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert answer.returncode == 0, answer.stderr
