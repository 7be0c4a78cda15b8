"""What the tests of the epoch log share: an identity, changes to write, and what a log holds."""

from __future__ import annotations

from pathlib import Path

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import EpochLog, LogIdentity
from qstate.checkpoint.log.chain import Chain
from qstate.checkpoint.log.merge import ascending
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.errors import DamagedCheckpoint
from qstate.keys import encode_key

__all__ = ["IDENTITY", "change", "held", "names", "open_log", "output_of", "read_with_any_base"]

IDENTITY = LogIdentity("job", "operator", 0, 2, 128)


def open_log(directory: Path | DurableDirectory, identity: LogIdentity = IDENTITY) -> EpochLog:
    return EpochLog.open(directory, identity)


def change(key: str, data: bytes = b"\x01", op: ChangeOp = ChangeOp.PUT) -> Change:
    return Change(op, "state", 3, encode_key(None), encode_key(key), b"", data)


def held(log: EpochLog) -> list[Change]:
    return list(log.changes())


def output_of(log: EpochLog, epoch: int) -> list[bytes]:
    return list(log.output(epoch))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_with_any_base(log: EpochLog | Chain) -> list[Change]:
    """As a subtask restores: the next base when one turns out damaged."""
    for base in log.bases:
        try:
            return list(ascending(change for part in log.parts(base) for change in part.changes))
        except DamagedCheckpoint:
            if base is log.bases[-1]:
                raise
    raise AssertionError("a log without a base")
