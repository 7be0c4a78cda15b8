"""What a query demands of the view that answers it: that there is one, how recent it is, and of which epoch.

Rules of this module: checks. It reads no state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from qstate.backends.contract import StateReader
from qstate.errors import Detail, EpochNotReached, NoCommittedEpoch, TooStale, UnsupportedQuery
from qstate.protocol.messages import NO_EPOCH
from qstate.runtime.serving.registry import StateInstance

__all__ = ["check_committed", "check_epoch", "check_staleness", "reader_of"]


def reader_of(instance: StateInstance, options: Mapping[str, Detail]) -> StateReader:
    """The reader of the isolation that a query demands. Raises `UnsupportedQuery`, `TooStale`."""
    isolation = str(options.get("isolation", "live"))
    reader = instance.readers_by_name.get(isolation)
    if reader is None:
        raise UnsupportedQuery(isolation=isolation, reason="the state's backend does not declare it")
    if isolation == "committed" and "max_staleness_ms" in options:
        check_staleness(instance, options)
    return reader


def check_committed(epoch: int, instance: StateInstance) -> None:
    """Raise `NoCommittedEpoch` when a committed view of that epoch is empty because there was no commit yet."""
    if epoch == NO_EPOCH and not instance.restored:
        raise NoCommittedEpoch()


def check_staleness(instance: StateInstance, options: Mapping[str, Detail]) -> None:
    """Raise `TooStale` unless a read from now on shows every commit that is older than the staleness allowed.

    Call it before the read: the read shows the view as it is now, or newer.
    """
    most_ms = options["max_staleness_ms"]
    assert isinstance(most_ms, int)  # the protocol has checked it
    since = instance.behind_since()
    if since is None:
        return
    if math.isinf(since):
        raise TooStale(max_staleness_ms=most_ms)
    staleness_ms = math.ceil(max(0.0, time.monotonic() - since) * 1000)
    if staleness_ms > most_ms:
        raise TooStale(staleness_ms=staleness_ms, max_staleness_ms=most_ms)


def check_epoch(epoch: int, options: Mapping[str, Detail]) -> None:
    """Raise `EpochNotReached` when the answer's epoch is before the demanded one, if one is demanded.

    Call it after the read, with the epoch of that read: the view may have another epoch at any other time.
    """
    least = options.get("min_epoch", NO_EPOCH)
    assert isinstance(least, int)  # the protocol has checked it
    if epoch < least:
        raise EpochNotReached(epoch=epoch, min_epoch=least)
