"""Sound servers that behave differently from the reference server: no law may refuse them.

Rules of this module: one class, one liberty that the protocol gives a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.defects.servers.meddler import Spoiler

__all__ = ["SOUND"]


class AnswersTheOtherWayRound(Spoiler):
    """Holds answers back for a moment, and sends the latest first."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.held: list[bytes] = []

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if not fields[1]:
            return [*self.server_ended(), payload]
        self.held.append(payload)
        if len(self.held) == 1:
            asyncio.get_running_loop().call_later(0.001, self.flush)
        return []

    def flush(self) -> None:
        for payload in self.server_ended():
            self.link.to_client(payload)

    def server_ended(self) -> list[bytes]:
        held, self.held = self.held, []
        return held[::-1]


class EndsLate(Spoiler):
    """Notices late that a client has ended its half of the connection."""

    def client_ended(self) -> bool:
        asyncio.get_running_loop().call_later(0.02, self.tell)
        return False

    def tell(self) -> None:
        if self.link.server is not None and not self.link.server.is_closing():
            self.link.server.write_eof()


SOUND = (AnswersTheOtherWayRound, EndsLate)
