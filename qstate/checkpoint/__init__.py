"""Epochs made durable on local disk, the fencing of those who write them, and what they hold read without the job."""

from qstate.checkpoint.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.chain import LogIdentity
from qstate.checkpoint.entries import Entry, read_entries
from qstate.checkpoint.epoch_log import EpochLog, OutputSpool
from qstate.checkpoint.history import StateSource, StoredOperator
from qstate.checkpoint.origins import open_source
from qstate.checkpoint.savepoint import Savepoint, write_savepoint
from qstate.checkpoint.verification import CheckedFile, verify

__all__ = [
    "CheckedFile",
    "Entry",
    "EpochAttempts",
    "EpochLog",
    "LogIdentity",
    "OutputSpool",
    "Process",
    "Replay",
    "Savepoint",
    "StateSource",
    "StoredOperator",
    "open_source",
    "read_entries",
    "verify",
    "write_savepoint",
]
