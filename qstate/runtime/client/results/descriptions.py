"""The jobs of a proxy or the states of a job, page by page.

Rules of this module: no sockets, no threads, no asyncio. It says what to ask for next; the two clients ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qstate.protocol.messages import AFTER, MORE, Describe, Description

__all__ = ["Listing"]


class Listing:
    """All entries of a job, or all jobs for None."""

    def __init__(self, job: str | None) -> None:
        self._job = job
        self._after = ""
        #: Those so far, in the order in which the server gave them.
        self.entries: list[Mapping[str, Any]] = []

    @property
    def request(self) -> Describe:
        """The next page. A server that knows no pages answers with all entries."""
        return Describe(0, 0, self._job, {AFTER: self._after})

    def take(self, page: Description) -> bool:
        """Add a page. Returns whether it was the last one."""
        self.entries += page.entries
        if MORE not in page.attributes:
            return True
        last = page.entries[-1]  # the connection has checked that there is one, and that it leads on
        self._after = last["name"] if "kind" in last else last["job"]
        return False
