"""Servers that read requests wrongly: their options, fields and handshakes. Each docstring says what is wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import LIVE_EPOCH, TOKEN
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import is_end, seeded

# --- options and fields -----------------------------------------------------------------------------------------------


class _ChangesOptions(Spoiler):
    reads_requests = True

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return options

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7 and isinstance(fields[5], dict):
            return [pack((*fields[:5], self.changed(fields[5]), fields[6]))]
        return [payload]


@seeded
class IgnoresUnknownOptions(_ChangesOptions):
    """Options that it does not know are ignored."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: value for name, value in options.items() if name == "isolation"}


@seeded
class IgnoresUnknownIsolations(_ChangesOptions):
    """An isolation that it does not know is live."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {
            name: "live" if name == "isolation" and value not in ("live", "committed") else value
            for name, value in options.items()
        }


@seeded
class IgnoresMinEpoch(_ChangesOptions):
    """A demanded epoch always counts as reached."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: value for name, value in options.items() if name != "min_epoch"}


@seeded
class WantsALaterEpoch(_ChangesOptions):
    """An epoch equal to the demanded one counts as too early."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        more = 1 if options.get("min_epoch") == LIVE_EPOCH else 0
        return {name: value + more if name == "min_epoch" else value for name, value in options.items()}


@seeded
class RefusesTheStrictestBound(_ChangesOptions):
    """A bound of zero staleness is refused even for a current view."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: -1 if name == "max_staleness_ms" and not value else value for name, value in options.items()}


@seeded
class TakesFloatsForIntegers(Spoiler):
    """A deadline may be a float or a boolean."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7 and isinstance(fields[2], float | bool):
            return [pack((*fields[:2], int(fields[2]), *fields[3:]))]
        return [payload]


@seeded
class ReadsTheShortestFormsAlone(Spoiler):
    """A message that is not in the shortest form of MessagePack is MALFORMED."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[1] == 0 or pack(fields) == payload:
            return [payload]
        self.link.to_client(pack((Type.FAILURE, fields[1], Code.MALFORMED, {})))
        return []


@seeded
class CountsBytesOfNames(Spoiler):
    """A name may have 255 bytes, not 255 characters."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        names = [name for name in fields[3:5] if isinstance(name, str)] if fields[0] == Type.LOCATE else []
        if all(len(name.encode()) <= 255 for name in names):
            return [payload]
        self.link.to_client(pack((Type.FAILURE, fields[1], Code.MALFORMED, {})))
        return []


@seeded
class DeadlineInSeconds(Spoiler):
    """A deadline counts as seconds instead of milliseconds."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and isinstance(fields[2], int) and 0 < fields[2] < 1000:
            return [pack((*fields[:2], fields[2] * 1000, *fields[3:]))]
        return [payload]


# --- handshake --------------------------------------------------------------------------------------------------------


class _ReadsHellos(Spoiler):
    reads_requests = True

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return self.hello(fields, payload) if fields[0] == Type.HELLO and len(fields) >= 5 else [payload]

    def refuse(self, code: int) -> list[bytes]:
        self.link.to_client(pack((Type.FAILURE, 0, code, {})))
        self.link.close()
        return []


@seeded
class AcceptsTheStartOfAToken(_ReadsHellos):
    """A prefix of the right token is accepted."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        token = fields[3]
        right = isinstance(token, bytes) and TOKEN.startswith(token[: len(TOKEN)]) and token
        return [pack((*fields[:3], TOKEN, *fields[4:]))] if right else [payload]


@seeded
class AcceptsNoToken(_ReadsHellos):
    """A client without a token is accepted."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:3], TOKEN, *fields[4:]))] if fields[3] is None else [payload]


@seeded
class RefusesLaterHellos(_ReadsHellos):
    """A Hello with elements that it does not know is MALFORMED."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload] if len(fields) == 5 else self.refuse(Code.MALFORMED)


@seeded
class ChoosesTheLowestVersion(_ReadsHellos):
    """It speaks the versions 1 and 2, and chooses 1 when the client speaks both."""

    version = 1

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        versions = fields[2]
        if not isinstance(versions, tuple) or 1 in versions:
            return [payload]
        if 2 not in versions:
            self.link.to_client(pack((Type.FAILURE, 0, Code.VERSION_MISMATCH, {"versions": "1,2"})))
            self.link.close()
            return []
        self.version = 2
        return [pack((*fields[:2], (1,), *fields[3:]))]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:2], self.version, *fields[3:]))] if fields[0] == Type.WELCOME else [payload]


@seeded
class KeepsItsVersionsToItself(Spoiler):
    """VERSION_MISMATCH lacks the server's versions."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:3], {}))] if is_end(fields) and fields[2] == Code.VERSION_MISMATCH else [payload]


@seeded
class WaitsForHandshakesForEver(Spoiler):
    """A client that never sends a whole Hello keeps its place."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if is_end(fields) and fields[2] == Code.DEADLINE_EXCEEDED:
            self.link.client.transport.pause_reading()  # type: ignore[attr-defined]
            self.link.meddler.shared.setdefault("kept", []).append(self.link)
            return []
        return [payload]


@seeded
class RequestsBeforeTheHandshake(_ReadsHellos):
    """A request is answered although there was no Hello."""

    shaken = False

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.PING and not self.shaken:
            self.link.to_client(pack((Type.PONG, fields[1])))
            return []
        self.shaken = True
        return [payload]
