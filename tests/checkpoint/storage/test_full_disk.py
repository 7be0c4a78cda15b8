"""Laws of a disk that is full: the error names the place, the room that is left there, and what makes room."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from qstate.host.storage_faults import BY_CHECKPOINT_DIR, BY_LOG_DIR, BY_TMPDIR, storage_fault
from tests.checkpoint.full_disk import (
    CAN_MOUNT,
    LARGE_FILES,
    NEW_FILES,
    said_on_a_small_file_system,
    said_with_small_files_only,
)

REMEDIES = {
    **dict.fromkeys(("rocksdb", "upload", "temporary_checkpoint", "scratch", "below_scratch"), BY_TMPDIR),
    "log": BY_LOG_DIR,
}
ROOM = re.compile(r"\([\d,]+ of [\d,]+ bytes are free")


def assert_said(said: str, action: str, place: Path, what: str) -> None:
    assert what in said
    assert str(place) in said
    assert ROOM.search(said)
    assert REMEDIES.get(action, BY_CHECKPOINT_DIR) in said


@pytest.mark.parametrize("action", LARGE_FILES)
def test_files_that_the_process_may_not_write(action: str, tmp_path: Path) -> None:
    said = said_with_small_files_only(action, tmp_path / "place")
    assert_said(said, action, tmp_path / "place", f"{os.strerror(errno.EFBIG)} for this process (ulimit -f)")


# A process that may not mount has the test above, and the words below.
@pytest.mark.parametrize("action", [*LARGE_FILES, *NEW_FILES] if CAN_MOUNT else [])
def test_a_file_system_that_is_full(action: str, tmp_path: Path) -> None:
    said = said_on_a_small_file_system(action, tmp_path / "place")
    assert_said(said, action, tmp_path / "place", os.strerror(errno.ENOSPC))
    assert ("and no more files can be added" in said) is (action in NEW_FILES)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG])
def test_each_of_the_systems_codes_is_said_in_its_words(code: int, tmp_path: Path) -> None:
    said = storage_fault(OSError(code, "whatever"), tmp_path / "not" / "there", BY_LOG_DIR)
    assert said.startswith(os.strerror(code))
    assert ROOM.search(said) and said.endswith(BY_LOG_DIR)


def test_other_failures_and_other_places_are_said_as_they_are() -> None:
    assert storage_fault(OSError(errno.EIO, "why"), Path("/"), BY_LOG_DIR) == "[Errno 5] why"
    assert storage_fault(OSError(errno.ENOSPC, "why"), "s3://bucket", BY_LOG_DIR) == "[Errno 28] why"
    assert storage_fault(OSError("why"), Path("/"), BY_LOG_DIR) == "why"
