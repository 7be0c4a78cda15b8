"""Servers that do not do what a Cancel asks for. Each docstring says what such a server does wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded


@seeded
class IgnoresCancel(Spoiler):
    """A request that is cancelled waits on."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [] if fields[0] == Type.CANCEL else [payload]


@seeded
class AnswersCancel(Spoiler):
    """Every Cancel is answered, whatever it names."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.CANCEL:
            self.link.to_client(pack((int(Type.FAILURE), fields[1], int(Code.CANCELLED), {})))
        return [payload]


@seeded
class CancelsTheLatest(Spoiler):
    """A Cancel ends the latest request, whatever it names."""

    reads_requests = True
    latest = 0

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.CANCEL:
            self.latest = max(self.latest, fields[1])
            return [payload]
        return [pack((int(Type.CANCEL), self.latest))] if self.latest else []
