"""Laws of reading what somebody else may have written: its cost is bounded before it is paid, and the error is a clear
one."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from xxhash import xxh64_hexdigest

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import open_source, read_entries, verify, write_savepoint
from qstate.checkpoint.log.compression import ALWAYS_ALLOWED, LARGEST_EXPANSION, compressor, decompressor
from qstate.checkpoint.log.file_facts import LARGEST_MANIFEST
from qstate.checkpoint.manifest import JobManifest, read_final, write_checked, write_final
from qstate.checkpoint.sources.savepoint import Savepoint
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.checkpoint.storage.locations import absolute, directory_of, open_directory
from qstate.cli import main as cli
from qstate.errors import CheckpointError, ConfigError, DamagedCheckpoint
from qstate.keys import encode_key, key_group
from tests.checkpoint.checkpoints import MAX_PARALLELISM, QUERY, UID, StoredJob, state_after
from tests.checkpoint.forged import ForgedDirectory, RawBytes
from tests.project.documentation import ROOT

LAST = 3
#: Far longer than any of this takes, far shorter than what is not bounded.
SOON_S = 60
#: What the command needs for itself, PyArrow included, and some blocks.
MOST_BYTES = 400 << 20
SHOW = """
import sys
from pathlib import Path
from qstate.cli import main as cli
code = cli.main(["checkpoint", *sys.argv[1:]])
status = Path("/proc/self/status")  # where there is none, only the time tells
lines = status.read_text().splitlines() if status.exists() else []
most = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")]
print(*(most or [0]), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    job.run(range(LAST + 1))
    return job


def said(*arguments: str) -> tuple[int, str, int]:
    """A command's exit code, what it said, and the most memory that it had."""
    answer = subprocess.run(
        [sys.executable, "-c", SHOW, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    *lines, most = answer.stderr.strip().splitlines()
    return answer.returncode, "\n".join(lines), int(most)


def assert_refused(location: object, what: str) -> None:
    """`show`, `dump` and `verify` find it, in one line and with little memory."""
    for command in ("show", "dump", "verify"):
        code, error, most = said(command, str(location))
        # A newest file that cannot be read at all is left out: `show` and `dump` are of the epoch before.
        assert code == 1 if command == "verify" else code == 0 or (code == 2 and what in error), (command, error)
        assert "Traceback" not in error
        assert most < MOST_BYTES, command
    damages = [found.damage for found in verify(str(location)) if found.damage is not None]
    assert any(what in damage for damage in damages), damages


def bomb(directory: ForgedDirectory, data: bytes) -> None:
    """Put a value of these bytes into the newest epoch, whose file is compressed by Zstandard from now on."""
    name = max(name for name in directory.files if name.endswith(".log"))
    file = directory.files[name]
    file.header["compression"] = "zstd"
    key = "key 1"
    file.body = [[[1, "total", b"\xc0", [key_group(key, MAX_PARALLELISM)], [encode_key(key)], None, [data]]]]


def test_a_small_file_does_not_become_a_large_one(job: StoredJob) -> None:
    directory = ForgedDirectory(Path(job.root))
    length = 600 << 20
    bomb(directory, msgpack.packb(bytes(length)))
    codec = pa.Codec("zstd")
    directory.write(lambda data: len(data).to_bytes(4, "little") + codec.compress(data, asbytes=True))
    newest = max(job.directory(0).glob("*.log"))
    assert newest.stat().st_size < 30_000
    assert_refused(job.root, "which qstate does not write")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_compressed_far_can_be_read_again(codec: str) -> None:
    compress, restored = compressor(codec), decompressor(codec)
    assert compress is not None and restored is not None
    for length in (0, 1, 1 << 20, ALWAYS_ALLOWED, ALWAYS_ALLOWED + 1, ALWAYS_ALLOWED + (8 << 20)):
        stored = compress(bytes(length))
        assert restored(stored) == bytes(length)
        assert length <= ALWAYS_ALLOWED or length <= LARGEST_EXPANSION * len(stored)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_not_compressed_so_is_said(codec: str) -> None:
    compress, restored = compressor(codec), decompressor(codec)
    assert compress is not None and restored is not None
    sound = compress(b"x" * 1000)
    for wrong in (b"", b"\0", sound[:-1], sound[4:], b"\x01\0\0\0" + sound[4:], b"\xff\xff\xff\xff" + sound[4:]):
        with pytest.raises(ValueError, match=r".+"):
            restored(wrong)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("nested arrays", RawBytes(b"\x91" * 1_000_000 + b"\xc0")),
        ("arrays that claim to be long", RawBytes(b"\xdd\x00\x0f\xff\xff" * 200_000)),
        ("empty arrays", RawBytes(b"\xdd\x00\x80\x00\x00" + b"\x90" * (1 << 23))),
        ("a long run", [[1, "total", b"\xc0", [0] * (1 << 17), [b"\xa0"] * (1 << 17), None, [b"\x01"] * (1 << 17)]]),
        ("no change", [[1, "total", b"\xc0", [], [], None, []]]),
        ("columns of two lengths", [[1, "total", b"\xc0", [0, 0], [b"\xa0"], None, [b"\x01"]]]),
    ],
)
def test_blocks_of_other_shapes_are_refused(job: StoredJob, name: str, payload: Any) -> None:
    directory = ForgedDirectory(Path(job.root))
    newest = max(name for name in directory.files if name.endswith(".log"))
    directory.files[newest].body = [payload]
    directory.write()
    assert_refused(job.root, Path(newest).name)


def checked(manifest: Any) -> bytes:
    checksum = xxh64_hexdigest(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps({"manifest": manifest, "checksum": checksum}).encode()


DEEP = b'{"manifest": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b', "checksum": "0"}'
LONG = b'{"manifest": {}, "checksum": "' + b"0" * LARGEST_MANIFEST + b'"}'
GOOD: dict[str, Any] = {
    "format": 1,
    "job": "job",
    "max_parallelism": 8,
    "layouts": [1],
    "operators": {UID: QUERY},
    "restored_from": None,
}
WRONG_MANIFESTS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "another JSON": b"[]",
    "nested without end": DEEP,
    "too long": LONG,
    "no map": checked([]),
    "a number": checked(7),
    "no members": checked({"format": 1}),
    "a name that is none": checked({**GOOD, "job": 7}),
    "no layout": checked({**GOOD, "layouts": []}),
    "a layout that is none": checked({**GOOD, "layouts": ["1"]}),
    "a layout of 9 of 8": checked({**GOOD, "layouts": [9]}),
    "no key groups": checked({**GOOD, "max_parallelism": 0}),
    "too many key groups": checked({**GOOD, "max_parallelism": 1 << 40}),
    "operators in a list": checked({**GOOD, "operators": [UID]}),
    "queries that are none": checked({**GOOD, "operators": {UID: None}}),
    "an origin that is none": checked({**GOOD, "restored_from": ["x"]}),
    "an empty origin": checked({**GOOD, "restored_from": ""}),
}


@pytest.mark.parametrize("data", WRONG_MANIFESTS.values(), ids=WRONG_MANIFESTS)
def test_a_manifest_of_another_shape_is_damage_by_name(job: StoredJob, data: bytes) -> None:
    (Path(job.root) / "job.json").write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"job\.json .*; bring it back from a copy"):
        JobManifest.read(job.root)
    (found,) = verify(str(job.root))
    assert found.damage is not None and "job.json" in found.damage


@pytest.mark.parametrize("name", ["nothing", "nested without end", "too long", "no map", "no members"])
def test_news_of_committed_epochs_of_another_shape_say_nothing(job: StoredJob, name: str) -> None:
    (Path(job.root) / "final.json").write_bytes(WRONG_MANIFESTS[name])
    assert read_final(job.root) == {}
    (Path(job.root) / "final.json").write_bytes(checked({"format": 1, "epochs": {QUERY: "7"}}))
    assert read_final(job.root) == {}
    assert [found.damage for found in verify(str(job.root)) if found.damage is not None] != []


def test_a_manifest_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    write_final(tmp_path, {QUERY: 1})
    with pytest.raises(CheckpointError, match=r"final\.json would have .* bytes"):
        write_final(tmp_path, {"x" * LARGEST_MANIFEST: 1})
    assert read_final(tmp_path) == {QUERY: 1}


@pytest.mark.parametrize("file", ["../0001.savepoint", "/etc/passwd", "..", "a/b", "", "x\0y"])
def test_a_savepoint_names_files_of_its_own_directory_only(job: StoredJob, tmp_path: Path, file: str) -> None:
    target = tmp_path / "savepoint"
    write_savepoint(open_source(str(job.root)), target)
    shutil.copy(target / "0001.savepoint", tmp_path / "0001.savepoint")
    manifest = json.loads((target / "savepoint.json").read_bytes())["manifest"]
    manifest["operators"][UID]["file"] = file
    write_checked(DurableDirectory(target), "savepoint.json", manifest)
    with pytest.raises(DamagedCheckpoint, match=r"savepoint\.json is not as qstate writes it"):
        Savepoint.read(target)


def test_a_number_that_is_far_away_is_not_counted_up_to(job: StoredJob) -> None:
    newest = max(job.directory(0).glob("*.log"))
    shutil.copy(newest, newest.with_name("999999999999.log"))
    assert_refused(job.root, f"{LAST + 3:012d}.log is missing")


def test_a_void_that_is_far_too_long_is_refused(job: StoredJob) -> None:
    directory = ForgedDirectory(Path(job.root))
    first = min(name for name in directory.files if name.endswith(".log"))
    directory.files[first].header["void"] = 1 << 62
    directory.write()
    assert_refused(job.root, Path(first).name)


def rewritten(job: StoredJob, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((Path(job.root) / "job.json").read_bytes())["manifest"]
    change(manifest)
    write_checked(DurableDirectory(Path(job.root)), "job.json", manifest)


def test_a_job_that_was_restored_from_itself_is_said(job: StoredJob) -> None:
    rewritten(job, lambda manifest: manifest.update(restored_from=str(job.root)))
    with pytest.raises(CheckpointError, match=r"job\.json says that the job was restored from .* leads back to itself"):
        open_source(str(job.root))
    other = StoredJob(Path(job.root).with_name("other"))
    rewritten(other, lambda manifest: manifest.update(restored_from=str(job.root)))
    rewritten(job, lambda manifest: manifest.update(restored_from=str(other.root)))
    for location in (job.root, other.root):
        with pytest.raises(CheckpointError, match="leads back to itself"):
            open_source(str(location))


@pytest.mark.parametrize("history", ["", "x" * 65, 7, None])
def test_history_that_no_job_has_written_is_damage(job: StoredJob, history: object) -> None:
    rewritten(job, lambda manifest: manifest.update(history=history))
    with pytest.raises(DamagedCheckpoint, match=r"job\.json is not as qstate writes it"):
        JobManifest.read(job.root)


def test_an_origin_that_is_no_location_is_said_with_the_file(job: StoredJob) -> None:
    rewritten(job, lambda manifest: manifest.update(restored_from="s3:/x"))
    with pytest.raises(CheckpointError, match=r"job\.json says that the job was restored from 's3:/x': .* no location"):
        open_source(str(job.root))


NO_LOCATIONS = {
    "a NUL character": "\0",
    "a NUL character in a URL of a file": "file:///a%00b",
    "a NUL character in the name of a user": "~a\0b/state",
    "a NUL character in an object store": "s3://bucket/a\0b",
    "half a character": "/a\ud800b",
    "half a character in an object store": "s3://bucket/a\ud800b",
    "half an address": "s3://[a/b",
    "half an address in a URL of a file": "file://[a/b",
}


@pytest.mark.parametrize("location", NO_LOCATIONS.values(), ids=NO_LOCATIONS)
def test_a_location_that_no_path_can_be_is_refused(location: str, job: StoredJob) -> None:
    for use in (absolute, open_directory, open_source, lambda location: list(verify(location))):
        with pytest.raises(ConfigError, match="is no location"):
            use(location)
    rewritten(job, lambda manifest: manifest.update(restored_from=location))
    for use in (open_source, lambda location: list(verify(location))):
        with pytest.raises(CheckpointError, match=r"job\.json says that the job was restored from .* is no location"):
            use(str(job.root))
    for command in ("show", "dump", "verify"):
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            assert cli.main(["checkpoint", command, str(job.root)]) == 2
        assert "is no location" in err.getvalue()


def test_a_path_with_a_nul_character_is_refused() -> None:
    for use in (absolute, open_directory, directory_of):
        with pytest.raises(ConfigError, match=r"'a\\x00b' is no location: .* NUL"):
            use(Path("a\0b"))


def test_thousands_of_layouts_are_looked_through(job: StoredJob) -> None:
    """One after the other, without a limit: each change of the parallelism adds one."""
    rewritten(job, lambda manifest: manifest.update(layouts=[1] + [2, 1] * 1500))
    source = open_source(str(job.root))
    entries = list(read_entries(source, UID))
    assert len(entries) == len(state_after(LAST))
    assert source.operator_states(UID, LAST) == [()]


def test_a_value_that_is_nested_as_deep_as_can_be_is_dumped(job: StoredJob) -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    key, group = encode_key("key 1"), key_group("key 1", MAX_PARALLELISM)
    job.logs[0].seal(LAST + 1, [Change(ChangeOp.PUT, "total", group, b"\xc0", key, b"", msgpack.packb(deep))])
    write_final(job.root, {QUERY: LAST + 1})
    assert not [found.damage for found in verify(str(job.root)) if found.damage is not None]
    code, error, _ = said("dump", str(job.root))
    assert (code, error) == (0, "")
