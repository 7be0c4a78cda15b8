"""What the tests of the epoch log share: an identity, changes to write, and what a log holds."""

from __future__ import annotations

from pathlib import Path

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import EpochLog, LogIdentity
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.keys import encode_key

__all__ = ["IDENTITY", "change", "held", "open_log", "output_of"]

IDENTITY = LogIdentity("job", "operator", 0, 2, 128)


def open_log(directory: Path | DurableDirectory, identity: LogIdentity = IDENTITY) -> EpochLog:
    return EpochLog.open(directory, identity)


def change(key: str, data: bytes = b"\x01", op: ChangeOp = ChangeOp.PUT) -> Change:
    return Change(op, "state", 3, encode_key(None), encode_key(key), b"", data)


def held(log: EpochLog) -> list[Change]:
    return list(log.changes())


def output_of(log: EpochLog, epoch: int) -> list[bytes]:
    return list(log.output(epoch))
