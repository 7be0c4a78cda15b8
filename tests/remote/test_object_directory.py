"""A directory in an object store, by itself: names, spools, conditional puts, errors."""

from __future__ import annotations

import io
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import absolute, open_directory
from qstate.checkpoint.storage.object_directory import SMALL_BYTES, ObjectDirectory
from qstate.checkpoint.storage.remote_file import BODY_BYTES, EDGE_BYTES, RemoteFile
from qstate.errors import ConfigError
from tests.closed_port import closed_port
from tests.remote import careless
from tests.remote.s3_server import BUCKET, S3Server


def put(files: Directory, name: str, data: bytes) -> None:
    with files.create("new.tmp") as file:
        file.write(data)
        files.finish(file)
    try:
        files.publish("new.tmp", name)
    finally:
        files.remove("new.tmp")


def test_name_can_be_taken_once(files: Directory) -> None:
    put(files, "one", b"first")
    with pytest.raises(FileExistsError):
        put(files, "one", b"second")
    assert files.read("one", 1 << 20) == b"first"
    files.remove("one")
    files.remove("one")
    put(files, "one", b"third")
    assert files.read("one", 1 << 20) == b"third"


def test_one_of_many_writers_gets_a_name(s3: S3Server, url: str) -> None:
    def attempt(number: int) -> bool:
        try:
            put(open_directory(url, s3.options), "one", b"%d" % number)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(attempt, range(8)))
    assert got.count(True) == 1
    assert open_directory(url, s3.options).read("one", 1 << 20) == b"%d" % got.index(True)


def test_listing_has_neither_temporary_nor_unfinished_files(files: Directory) -> None:
    assert files.names() == []
    with files.create("a.tmp") as temporary, files.create("b.output") as output:
        temporary.write(b"x")
        output.write(b"y")
        assert files.names() == []
        files.finish(output)
    assert files.names() == ["b.output"]
    files.remove("a.tmp")
    with pytest.raises(FileNotFoundError):
        files.publish("a.tmp", "a")


def test_names_are_those_of_this_directory_and_always_new(s3: S3Server, files: Directory, url: str) -> None:
    odd = files.joinpath("50% of [it] *", "a b")
    put(odd, "one", b"1")
    put(files, "two", b"2")
    assert sorted(files.names()) == ["50% of [it] *", "two"]
    assert not files.exists("50% of [it] *"), "a directory is no file"
    put(open_directory(url, s3.options), "three", b"3")
    assert sorted(files.names()) == ["50% of [it] *", "three", "two"]
    assert odd.names() == ["one"]
    assert open_directory(str(odd.path), s3.options).read("one", 1 << 20) == b"1", "the path is a location"


def test_a_large_file_is_read_by_ranges(files: Directory) -> None:
    data = random.Random(5).randbytes(SMALL_BYTES + 3 * EDGE_BYTES)
    put(files, "large", data)
    for files_again in (files, files.joinpath()):  # with and without its length being known
        with files_again.open("large") as file:
            assert file.seek(0, io.SEEK_END) == len(data)
            file.seek(-8, io.SEEK_END)
            assert file.read(8) == data[-8:]
            file.seek(0)
            assert file.read() == data
        files.names()
    with pytest.raises(FileNotFoundError):
        files.open("nothing")


def test_reads_at_each_end_share_one_small_request_and_the_body_takes_few() -> None:
    data = random.Random(6).randbytes(3 * BODY_BYTES)
    asked: list[tuple[int, int]] = []

    def fetch(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return data[start:stop]

    file = io.BufferedReader(RemoteFile(fetch, len(data)), 1 << 16)
    file.seek(len(data) - 8)
    file.read(8)
    file.seek(0)
    file.read(100)
    file.seek(len(data) - 1000)
    file.read(900)
    assert asked == [(len(data) - EDGE_BYTES, len(data)), (0, EDGE_BYTES)]
    file.seek(0)
    assert file.read() == data
    assert len(asked) == 2 + 3
    chosen = random.Random(7)
    for _ in range(50):
        start, length = chosen.randrange(len(data)), chosen.randrange(1, BODY_BYTES)
        file.seek(start)
        assert file.read(length) == data[start : start + length]


def test_a_file_is_replaced_whole(files: Directory) -> None:
    for data in (b"one", b"another one"):
        files.replace("job.json", data)
        assert files.read("job.json", 1 << 20) == data
    assert files.modified_at("job.json") > 1e9


def test_a_store_without_conditional_writes_is_refused(s3: S3Server, url: str) -> None:
    assert careless.CarelessFileSystem is fsspec.get_filesystem_class("careless")
    for protocol, reason in [
        ("careless", "4 of 4 simultaneous uploads"),
        ("halfcareless", "a multipart upload replaces"),
    ]:
        files = open_directory(f"{protocol}{url[2:]}", s3.options)
        assert isinstance(files, ObjectDirectory)
        with pytest.raises(ConfigError, match=f"cannot hold checkpoints: {reason}.*Use a store that has"):
            files.check_exclusive()
        assert files.names() == [], "the probe is gone"


def test_check_before_a_put_is_no_conditional_write() -> None:
    files = ObjectDirectory("memory://x", fsspec.filesystem("memory"), "/x")
    with pytest.raises(ConfigError, match="MemoryFileSystem of fsspec has no conditional put"):
        files.check_exclusive()


def test_a_store_with_conditional_writes_is_accepted(files: Directory) -> None:
    assert isinstance(files, ObjectDirectory)
    files.check_exclusive()
    assert files.names() == []


def test_a_store_that_cannot_be_reached_is_an_error_of_the_system(s3: S3Server, url: str) -> None:
    with closed_port() as port:
        files = open_directory(url, {**s3.options, "endpoint_url": f"http://127.0.0.1:{port}"})
        for call in (
            files.names,
            lambda: files.exists("x"),
            lambda: files.read("x", 1 << 20),
            lambda: files.replace("x", b""),
        ):
            with pytest.raises(OSError, match="Could not connect"):
                call()


def test_failed_upload_may_or_may_not_have_taken_the_name(s3: S3Server, url: str) -> None:
    with closed_port() as port:
        files = open_directory(url, {**s3.options, "endpoint_url": f"http://127.0.0.1:{port}"})
        with pytest.raises(OSError, match="Could not connect"):
            put(files, "one", b"1")
        with pytest.raises(OSError, match="may still arrive"):
            files.exists("one")


def test_a_missing_bucket_is_an_error_when_written_to(s3: S3Server) -> None:
    files = open_directory("s3://no-such-bucket/x", s3.options)
    assert files.names() == []
    with pytest.raises(FileNotFoundError, match="bucket"):
        put(files, "one", b"1")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("file:///state/a%20b", "/state/a b"),
        ("file:/state", "/state"),
        ("/state", "/state"),
        ("s3://bucket/state/", "s3://bucket/state"),
    ],
)
def test_locations_become_absolute(location: str, expected: str) -> None:
    assert absolute(location) == expected


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ConfigError, match=r"abfs:// needs another package.*adlfs"):
        open_directory("abfs://container/state")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"needs fsspec: pip install 'spark-qstate\[remote\]'"):
        open_directory(f"s3://{BUCKET}/state")


def test_a_chain_of_protocols_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no location"):
        open_directory("simplecache::s3://bucket/state")


def test_an_upload_that_the_server_does_not_read_times_out(s3: S3Server, url: str) -> None:
    """The client of S3 would wait forever for a server that does not ask for the body."""
    files = open_directory(url, {**s3.options, "upload_timeout_s": 0.5})
    s3.pause()
    try:
        with pytest.raises(OSError, match="FSTimeoutError"):
            put(files, "one", b"1")
    finally:
        s3.resume()
