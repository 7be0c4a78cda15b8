"""The names of the files of one epoch log: how they are built, parsed and ordered.

Rules of this module: names in, names and numbers out. It opens no file. No other module knows how a name is made up.

    000000000002.log                     a writer's opening, or an epoch
    000000000002.snapshot                the state after file 2
    000000000002-000000000001.output     the output of the epoch in file 2, by the writer that opened with file 1
    000000000003-5f2a....tmp             a file that is being written for the number 3, or that a dead writer left

Every name begins with its number in twelve digits, so names of one kind sort as their numbers do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple
from uuid import uuid4

from qstate.checkpoint.storage.directory import TEMPORARY_SUFFIX

__all__ = [
    "FileKind",
    "FileName",
    "history_files",
    "is_history_file",
    "leftover_number",
    "log_name",
    "output_name",
    "parse_name",
    "removal_order",
    "snapshot_name",
    "temporary_name",
]


class FileKind(Enum):
    """What a file is for; the value is the extension of its name."""

    LOG = "log"
    SNAPSHOT = "snapshot"
    OUTPUT = "output"


class FileName(NamedTuple):
    """The number and kind in a name."""

    number: int
    kind: FileKind


_NAME = re.compile(r"(\d{12})(?:\.(log|snapshot)|-\d{12}\.(output))")
_LEFTOVER_NAME = re.compile(rf"(\d{{12}})-.*(?:\.output|{re.escape(TEMPORARY_SUFFIX)})")
_REMOVAL_RANKS = {FileKind.SNAPSHOT.value: 0, FileKind.LOG.value: 1}


def log_name(sequence: int) -> str:
    return f"{sequence:012d}.{FileKind.LOG.value}"


def snapshot_name(sequence: int) -> str:
    return f"{sequence:012d}.{FileKind.SNAPSHOT.value}"


def output_name(sequence: int, writer: int) -> str:
    """`writer` is the number of the opening of the writer that makes the output."""
    return f"{sequence:012d}-{writer:012d}.{FileKind.OUTPUT.value}"


def temporary_name(sequence: int) -> str:
    """A new name on each call."""
    return f"{sequence:012d}-{uuid4().hex}{TEMPORARY_SUFFIX}"


def parse_name(name: str) -> FileName | None:
    """The number and kind of a file of the log; None for temporary files and files of other kinds."""
    match = _NAME.fullmatch(name)
    return None if match is None else FileName(int(match[1]), FileKind(match[2] or match[3]))


def is_history_file(name: str) -> bool:
    """Whether it is the name of a `.log` or `.snapshot` file."""
    return bool(history_files([name]))


def history_files(names: Iterable[str]) -> list[FileName]:
    """The `.log` and `.snapshot` files among the names, in the order given."""
    return [found for found in map(parse_name, names) if found is not None and found.kind is not FileKind.OUTPUT]


def leftover_number(name: str) -> int | None:
    """The number of an output or temporary file, which a dead writer may have left; None for all other files."""
    match = _LEFTOVER_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def removal_order(names: Iterable[str]) -> list[str]:
    """The files of a directory in the order to remove them: snapshots, then `.log` files, both ascending, then others.

    After a crash in between, the rest is the whole history or one that readers refuse. It is never an older history
    that looks whole.
    """
    return sorted(names, key=lambda name: (_REMOVAL_RANKS.get(name.rpartition(".")[2], 2), name))
