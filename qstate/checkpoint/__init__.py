"""Durable epochs, on a disk or in an object store: how they are written, fenced, read back and checked."""

from qstate.checkpoint.log.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.log.chain import LogIdentity
from qstate.checkpoint.log.epoch_log import EpochLog, OutputSpool
from qstate.checkpoint.sources.entries import Element, Entry, read_entries, read_operator_state
from qstate.checkpoint.sources.history import StateSource, StoredOperator
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import Savepoint, write_savepoint
from qstate.checkpoint.sources.verification import CheckedFile, verify

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
