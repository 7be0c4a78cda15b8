"""Epochs made durable on local disk, and the fencing of those who write them."""

from qstate.checkpoint.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.chain import LogIdentity
from qstate.checkpoint.epoch_log import EpochLog, OutputSpool

__all__ = ["EpochAttempts", "EpochLog", "LogIdentity", "OutputSpool", "Process", "Replay"]
