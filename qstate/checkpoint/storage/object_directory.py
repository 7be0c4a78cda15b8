"""A directory in an object store: names under a prefix, put by conditional requests through fsspec.

Rules of this module: only this module imports fsspec. It translates all errors of the store's client into `OSError`, or
into `ConfigError` if only the user can correct the cause.

A writer writes a file to a spool: a file without a name on the local disk, so that a killed process leaves nothing. A
temporary file never leaves its spool. `finish` uploads any other file, `publish` a temporary one under its new name.
Both uploads have the condition that no object has the name. An object appears whole or not at all.

**A failed upload may still arrive**: its answer may be lost, or the request may wait in a queue. After such a failure
the directory cannot know whether the name is taken, so `exists` raises. The next process that opens the epoch log finds
out: it takes the next number, or finds it taken.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from uuid import uuid4
from weakref import finalize

from qstate.checkpoint.storage.directory import TEMPORARY_SUFFIX, Directory
from qstate.checkpoint.storage.remote_file import RemoteFile
from qstate.errors import ConfigError
from qstate.host.storage_faults import BY_TMPDIR, storage_fault

__all__ = ["ObjectDirectory", "Url"]

#: A file of up to this size is fetched whole, by one request.
SMALL_BYTES = 1 << 20
BUFFER_BYTES = 1 << 16
#: How many threads put one name at once, to probe whether the store gives the name to one of them only.
PROBERS = 4
#: S3 answers 409 while it decides between two conditional puts; the most tries of such a put.
MOST_TRIES = 6
FIRST_PAUSE_S = 0.05
#: The only option that is ours and not the filesystem's: an upload that takes longer, plus a second for each MiB,
#: counts as failed. The stores' clients limit the time for answers, but that of S3 waits without end for a server that
#: does not ask for the body (Expect: 100-continue).
UPLOAD_TIMEOUT_OPTION, UPLOAD_TIMEOUT_S = "upload_timeout_s", 20.0
UPLOAD_TIMEOUT_S_PER_BYTE = 1 / (1 << 20)

_CONFLICT, _PRECONDITION_FAILED, _NO_SUCH_RANGE = 409, 412, 416

_INSTALL = "pip install 'spark-qstate[remote]'"
#: The packages whose conditional put is one request, not a check and then a put.
_FIT_FOR_WRITING = "S3 (s3fs), Google Cloud Storage (gcsfs) and Azure Blob Storage (adlfs)"


class Url(str):
    """A URL as text, to which names can be added as to a `Path`."""

    __slots__ = ()

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}/{name}")


class _Spool:
    """A file without a name on the local disk, and its writer."""

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        except OSError as exc:
            raise _no_spool(exc) from exc
        raw = _SpoolFile(os.dup(self._file.fileno()), "wb")
        self.writer: BinaryIO = cast("BinaryIO", io.BufferedWriter(raw, BUFFER_BYTES))
        #: Frees the file. Garbage collection calls it as well, for a spool that its writer has dropped.
        self.close = finalize(self, _close, self.writer, self._file)

    @property
    def path(self) -> str:
        """A path that opens the file at its start."""
        self._file.seek(0)
        return f"/dev/fd/{self._file.fileno()}"

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self._file.fileno()).st_size


class _SpoolFile(io.FileIO):
    """A spool's raw file; its errors name the temporary directory, not the store."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise _no_spool(exc) from exc


def _no_spool(exc: OSError) -> OSError:
    where = Path(tempfile.gettempdir())
    return OSError(exc.errno, f"no copy for the upload in {where}: {storage_fault(exc, where, BY_TMPDIR)}")


def _close(*files: IO[bytes]) -> None:
    for file in files:
        with suppress(OSError):  # such as for a full disk: the buffered bytes are not needed any more
            file.close()


class ObjectDirectory(Directory):
    """The objects directly under a prefix. Used by one thread at a time."""

    path: Url

    def __init__(self, url: str, filesystem: Any, root: str, upload_timeout_s: float = UPLOAD_TIMEOUT_S) -> None:
        """`root` is the URL as a path of the fsspec filesystem."""
        self.path = Url(url.rstrip("/"))
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._upload_timeout_s = upload_timeout_s
        self._spools: dict[str, _Spool] = {}
        #: The sizes of the objects in the last listing; an object never changes.
        self._sizes: dict[str, int] = {}
        self._uncertain: set[str] = set()

    @classmethod
    def at(cls, url: str, options: Mapping[str, Any]) -> ObjectDirectory:
        """The directory at a URL; sends no request. `options` are those of the fsspec filesystem, and ours.

        Raises `ConfigError` when the protocol is unknown, its package is missing, or an option is invalid.
        """
        timeout_s = options.get(UPLOAD_TIMEOUT_OPTION, UPLOAD_TIMEOUT_S)
        if type(timeout_s) not in (int, float) or timeout_s <= 0:
            raise ConfigError(f"the storage option {UPLOAD_TIMEOUT_OPTION} takes seconds above zero, got {timeout_s!r}")
        others = {name: value for name, value in options.items() if name != UPLOAD_TIMEOUT_OPTION}
        return cls(url, *_filesystem(url, others), timeout_s)

    def joinpath(self, *parts: str) -> ObjectDirectory:
        below = "/".join(parts)
        url, root = f"{self.path}/{below}", f"{self._root}/{below}"
        return ObjectDirectory(url, self._filesystem, root, self._upload_timeout_s)

    def make(self) -> None:
        """Does nothing: a prefix exists with its first object."""

    def names(self) -> list[str]:
        try:
            with _as_os_errors(self.path):
                # fsspec may have cached a listing, without the files that others have added since.
                self._filesystem.invalidate_cache(self._root)
                found = self._filesystem.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        prefix = self._root.lstrip("/") + "/"
        sizes = {}
        for entry in found:
            name = str(entry["name"]).lstrip("/").removeprefix(prefix).rstrip("/")
            if name and "/" not in name:
                sizes[name] = int(entry.get("size") or 0)
        self._sizes = sizes
        return list(sizes)

    def exists(self, name: str) -> bool:
        if name in self._uncertain:
            raise OSError(errno.EIO, "an upload has failed and may still arrive", str(self.path / name))
        try:
            self._size(name)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str) -> BinaryIO:
        size = self._sizes.get(name)
        if size is None:
            size = self._size(name)
        if size <= SMALL_BYTES:
            return io.BytesIO(self.read(name, SMALL_BYTES))

        def fetch(start: int, stop: int) -> bytes:
            with _as_os_errors(self.path / name):
                return cast("bytes", self._filesystem.cat_file(self._at(name), start=start, end=stop))

        return io.BufferedReader(RemoteFile(fetch, size), BUFFER_BYTES)

    def read(self, name: str, limit: int) -> bytes:
        try:
            with _as_os_errors(self.path / name):
                return cast("bytes", self._filesystem.cat_file(self._at(name), start=0, end=limit + 1))
        except OSError as exc:
            if _status(exc) != _NO_SUCH_RANGE:
                raise
            return b""  # an empty object has no range

    def modified_at(self, name: str) -> float:
        with _as_os_errors(self.path / name):
            return float(self._filesystem.modified(self._at(name)).timestamp())

    def create(self, name: str) -> BinaryIO:
        if name in self._spools:
            raise FileExistsError(errno.EEXIST, "is being written", str(self.path / name))
        spool = self._spools[name] = _Spool()
        return spool.writer

    def finish(self, file: BinaryIO) -> None:
        name = next(name for name, spool in self._spools.items() if spool.writer is file)
        with file:
            file.flush()
        if not name.endswith(TEMPORARY_SUFFIX):
            self.publish(name, name)

    def publish(self, temporary: str, name: str) -> None:
        spool = self._spools.get(temporary)
        if spool is None:
            raise FileNotFoundError(errno.ENOENT, "is not in the spool", str(self.path / temporary))
        try:
            self._put_new(spool, name)
        except FileExistsError:
            raise
        except OSError:
            self._uncertain.add(name)
            raise
        del self._spools[temporary]
        spool.close()

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        self._sizes.pop(name, None)
        with _as_os_errors(self.path / name):
            self._filesystem.pipe_file(self._at(name), data, **self._limit(len(data)))

    def remove(self, name: str) -> None:
        spool = self._spools.pop(name, None)
        if spool is not None:
            spool.close()
        self._sizes.pop(name, None)
        if name.endswith(TEMPORARY_SUFFIX):
            return
        with suppress(FileNotFoundError), _as_os_errors(self.path / name):
            self._filesystem.rm_file(self._at(name))

    def remove_itself(self) -> None:
        """Does nothing: a prefix disappears with its last object."""

    def sync(self) -> None:
        """Does nothing: an object is durable once it is put."""

    def check_exclusive(self) -> None:
        """Check that the store gives a name to one writer only.

        Raises `ConfigError` when it does not, and `OSError` when the store cannot be written to.
        """
        emulated = getattr(self._filesystem.put_file, "__func__", None) is _fsspec().AbstractFileSystem.put_file
        if emulated:  # it checks, and then puts: it would overwrite a put in between
            raise self._not_exclusive(f"{type(self._filesystem).__name__} of fsspec has no conditional put")
        name = f"probe-{uuid4().hex}"
        try:
            with ThreadPoolExecutor(PROBERS) as probers:
                got = sum(probers.map(self._probe, [name] * PROBERS))
            if got != 1:
                raise self._not_exclusive(f"{got} of {PROBERS} simultaneous uploads of one name succeeded")
            if self._multipart_replaces(name):
                raise self._not_exclusive("a multipart upload replaces an existing object")
        finally:
            with suppress(OSError):
                self.remove(name)

    def _probe(self, name: str) -> bool:
        spool = _Spool()
        try:
            spool.writer.write(b"qstate")
            spool.writer.flush()
            self._put_new(spool, name)
        except FileExistsError:
            return False
        finally:
            spool.close()
        return True

    def _multipart_replaces(self, name: str) -> bool:
        """Whether a multipart upload, which S3 needs for large files, ignores the condition."""
        if not hasattr(self._filesystem, "call_s3"):  # other stores put large files under the same condition
            return False
        call = partial(self._filesystem.call_s3, **self._limit())
        bucket, key, _ = self._filesystem.split_path(self._at(name))
        place = {"Bucket": bucket, "Key": key}
        with _as_os_errors(self.path / name):
            place["UploadId"] = call("create_multipart_upload", **place)["UploadId"]
            part = call("upload_part", PartNumber=1, Body=b"qstate", **place)
            parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
            try:
                with _as_os_errors(self.path / name):
                    call("complete_multipart_upload", MultipartUpload=parts, IfNoneMatch="*", **place)
            except FileExistsError:
                call("abort_multipart_upload", **place)
                return False
        return True

    def _not_exclusive(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.path} cannot hold checkpoints: {why}, so two writers could overwrite each other's files. Use a "
            f"store that has conditional writes (If-None-Match), such as {_FIT_FOR_WRITING}, or a mounted directory"
        )

    def _put_new(self, spool: _Spool, name: str) -> None:
        for attempt in range(MOST_TRIES):
            try:
                with _as_os_errors(self.path / name):
                    self._filesystem.put_file(spool.path, self._at(name), mode="create", **self._limit(spool.size))
                return
            except OSError as exc:
                if _status(exc) != _CONFLICT or attempt == MOST_TRIES - 1:
                    raise
                time.sleep(FIRST_PAUSE_S * 2**attempt)

    def _limit(self, size: int = 0) -> dict[str, float]:
        """The argument that limits the time of a call; only asynchronous filesystems take one."""
        if not getattr(self._filesystem, "async_impl", False):
            return {}
        return {"timeout": self._upload_timeout_s + size * UPLOAD_TIMEOUT_S_PER_BYTE}

    def _size(self, name: str) -> int:
        with _as_os_errors(self.path / name):
            info = self._filesystem.info(self._at(name))
            if info["type"] == "directory":
                raise FileNotFoundError(errno.ENOENT, "is no file", str(self.path / name))
            return int(info["size"])

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _as_os_errors(path: Url) -> Iterator[None]:
    """Translate every error of the store's client into `OSError`, a failed condition into `FileExistsError`."""
    try:
        yield
    except FileExistsError:
        raise
    except Exception as exc:
        if _status(exc) == _PRECONDITION_FAILED:
            raise FileExistsError(errno.EEXIST, "is there already", str(path)) from exc
        if isinstance(exc, OSError) and type(exc).__module__ == "builtins":
            raise
        raise OSError(errno.EIO, f"{type(exc).__name__}: {exc}", str(path)) from exc


def _status(exc: BaseException | None) -> int | None:
    """The HTTP status in an error of the clients of S3, Azure and Google; None if it has none."""
    while exc is not None:
        response = getattr(exc, "response", None)
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            status = getattr(exc, "status_code", None) or getattr(exc, "code", None)
        if isinstance(status, int):
            return status
        exc = exc.__cause__
    return None


def _filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The fsspec filesystem of a URL, and the URL as a path of it."""
    fsspec = _fsspec()
    protocol = url.partition("://")[0]
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **{**options, "use_listings_cache": False})
    except ImportError as exc:
        raise ConfigError(f"{protocol}:// needs another package: {exc}; {_INSTALL} brings the one for S3") from exc
    except ValueError as exc:
        if protocol not in fsspec.available_protocols():
            raise ConfigError(f"{protocol}:// is no protocol that fsspec knows: {exc}") from exc
        raise ConfigError(f"{url} cannot be opened: {exc}; look at the storage options") from exc
    except Exception as exc:  # a store's client may raise anything for its options
        raise ConfigError(f"{url} cannot be opened: {type(exc).__name__}: {exc}; look at the storage options") from exc
    return filesystem, str(root)


def _fsspec() -> Any:
    try:
        import fsspec  # noqa: PLC0415  # optional: only locations that are URLs need it
    except ImportError as exc:
        raise ConfigError(f"a location that is a URL needs fsspec: {_INSTALL}") from exc
    return fsspec
