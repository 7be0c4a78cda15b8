"""Epochs made durable, on a disk or in an object store, the fencing of those who write them, and what they hold."""

from qstate.checkpoint.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.chain import LogIdentity
from qstate.checkpoint.entries import Element, Entry, read_entries, read_operator_state
from qstate.checkpoint.epoch_log import EpochLog, OutputSpool
from qstate.checkpoint.history import StateSource, StoredOperator
from qstate.checkpoint.origins import open_source
from qstate.checkpoint.savepoint import Savepoint, write_savepoint
from qstate.checkpoint.verification import CheckedFile, verify

__all__ = [
    "CheckedFile",
    "Element",
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
    "read_operator_state",
    "verify",
    "write_savepoint",
]
