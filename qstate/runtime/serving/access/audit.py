"""The audit log of a query port: who asked for what, and what was refused. It never has a key, a value or a token.

Rules of this module: it counts, and writes the counts to the logger `qstate.audit` once in an interval: one line for
each principal, address, kind of request and state, however many requests there were. So the log costs a look-up for
each request, and a client cannot fill a disk with it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import NamedTuple

from qstate.errors import FailureCode

__all__ = ["INTERVAL_S", "LOGGER", "MOST_ENTRIES", "MOST_OF_ADDRESS", "Audit"]

#: The name of the logger.
LOGGER = "qstate.audit"
#: How often the counts are written.
INTERVAL_S = 10.0
#: The most lines of one interval: clients choose the names in their requests. Further entries share a line each way.
MOST_ENTRIES = 1000
#: The most of these lines about one address: so one client does not hide what others do.
MOST_OF_ADDRESS = MOST_ENTRIES // 4

log = logging.getLogger(LOGGER)


class Entry(NamedTuple):
    """What the requests of one line have in common. `refusal` is 0 when they were permitted."""

    principal: str
    address: str
    request: str
    job: str | None
    state: str | None
    refusal: int


class Audit:
    """The counts of one port since they were last written. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Entry, list[int]] = {}
        #: The number of lines of each address.
        self._lines: Counter[str] = Counter()

    def record(self, entry: Entry, keys: int = 0) -> None:
        """Count a request, with its number of keys."""
        with self._lock:
            counts = self._counts.get(entry)
            if counts is None:
                entry = self._line_of(entry)
                counts = self._counts.setdefault(entry, [0, 0])
            counts[0] += 1
            counts[1] += keys

    def _line_of(self, entry: Entry) -> Entry:
        """The line of an entry that has none yet: its own, or one that it shares."""
        if len(self._counts) >= MOST_ENTRIES:
            return Entry("(others)", "", "(any)", None, None, entry.refusal)
        if self._lines[entry.address] >= MOST_OF_ADDRESS:
            return Entry("(others)", entry.address, "(any)", None, None, entry.refusal)
        self._lines[entry.address] += 1
        return entry

    def write(self) -> None:
        """Write the counts, and begin again."""
        with self._lock:
            counts, self._counts = self._counts, {}
            self._lines.clear()
        for entry, (requests, keys) in counts.items():
            refusal = FailureCode(entry.refusal).name if entry.refusal else ""
            facts = {**entry._asdict(), "refusal": refusal, "requests": requests, "keys": keys}
            # The names come from clients: repr leaves no line break in them.
            text = " ".join(f"{name}={value!r}" for name, value in facts.items() if value not in (None, ""))
            level, outcome = (logging.WARNING, "refused") if refusal else (logging.INFO, "permitted")
            log.log(level, "%s: %s", outcome, text, extra={"audit": facts})
