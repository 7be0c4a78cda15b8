"""Servers that visit the wrong keys. Each docstring says what such a server does wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import MAX_PARALLELISM
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded

#: Where the fields of Scan and Page are.
NAMESPACES, PREFIX, START, STOP, PLACE, VIEW, OPTIONS = range(4, 11)
EPOCH, PAGE_VIEW, NEXT, AFTER, SELECTED, SPACES, KEYS, RESULTS = 2, *range(4, 11)


class _SpoilsPages(Spoiler):
    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.PAGE else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


class _SpoilsScans(Spoiler):
    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.SCAN else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError

    def without(self, fields: list[Any], option: str) -> list[Any]:
        fields[OPTIONS] = {name: value for name, value in fields[OPTIONS].items() if name != option}
        return fields


def _of_entries(fields: list[Any], places: Sequence[int]) -> list[Any]:
    """The page with these of its entries."""
    for field in (SPACES, KEYS, RESULTS):
        fields[field] = [fields[field][at] for at in places] if fields[field] else []
    fields[SELECTED] = len(places)
    return fields


@seeded
class VisitsAKeyTwice(_SpoilsPages):
    """The first key of a page comes twice."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return _of_entries(fields, [0, *range(len(fields[KEYS]))]) if fields[KEYS] else fields


@seeded
class VisitsKeysInReverse(_SpoilsPages):
    """The last key of a page comes first."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return _of_entries(fields, range(len(fields[KEYS]))[::-1]) if fields[KEYS] else fields


@seeded
class LosesTheKeyAtTheEnd(_SpoilsPages):
    """The key at which a page ends is on neither page."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        ends_within = fields[AFTER] is not None and fields[KEYS]
        return _of_entries(fields, range(len(fields[KEYS]) - 1)) if ends_within else fields


@seeded
class GoesOnWhereItBegan(_SpoilsScans):
    """The place of a Scan is ignored."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[PLACE] = None
        return fields


@seeded
class ScansAreLive(_SpoilsScans):
    """A committed scan shows the running epoch."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return self.without(fields, "isolation")


@seeded
class PagesAreOfManyEpochs(_SpoilsPages):
    """A page that goes on within a key group names the epoch after its own."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[EPOCH] += bool(fields[PAGE_VIEW])
        return fields


@seeded
class TooLargeIsLeftOut(_SpoilsPages):
    """Keys whose values are too large are not visited."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if not fields[RESULTS]:
            return fields
        return _of_entries(fields, [at for at, result in enumerate(fields[RESULTS]) if result != Code.TOO_LARGE])


@seeded
class TooLargeEndsTheScan(Spoiler):
    """A value that is too large fails the page."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.PAGE and Code.TOO_LARGE in fields[RESULTS]:
            return [pack([Type.FAILURE, fields[1], Code.TOO_LARGE, {}])]
        return [payload]


@seeded
class ForgetsThePrefix(_SpoilsScans):
    """Visits the keys with any prefix."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[PREFIX] = None
        return fields


@seeded
class TakesAPrefixForAColumn(_SpoilsScans):
    """The text or bytes that a column begins with must be the whole column."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if isinstance(fields[PREFIX], str | bytes) and fields[PREFIX]:
            fields[PREFIX] = [fields[PREFIX]]
        return fields


@seeded
class ForgetsTheNamespace(_SpoilsScans):
    """Visits every namespace."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[NAMESPACES] = []
        return fields


@seeded
class ForgetsTheLimit(_SpoilsScans):
    """Gives as many keys as a page holds."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return fields if fields[OPTIONS].get("limit") == 0 else self.without(fields, "limit")


@seeded
class ShowsEverything(_SpoilsScans):
    """Gives values to those who ask for keys, and keys to those who count."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return self.without(fields, "show")


@seeded
class BeginsAgainAfterTheLastGroup(_SpoilsScans):
    """Key groups are counted modulo `max_parallelism`."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if fields[START] >= MAX_PARALLELISM:
            fields[START:PLACE] = [0, MAX_PARALLELISM]
        return fields


@seeded
class ForgetsDemandsOfScans(_SpoilsScans):
    """Answers a Scan whatever its min_epoch."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return self.without(fields, "min_epoch")


@seeded
class VisitsNothingThatIsNotOwned(Spoiler):
    """A state server answers a Scan of key groups that it does not hold with a page without keys."""

    at_owners = True
    reads_requests = True
    stops: dict[int, int]

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.SCAN:
            self.stops = {**getattr(self, "stops", {}), fields[1]: fields[STOP]}
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.KEY_GROUP_NOT_OWNED:
            stop = getattr(self, "stops", {}).get(fields[1])
            if stop is not None:
                return [pack([Type.PAGE, fields[1], 1, "x", b"", stop, None, 0, [], [], []])]
        return [payload]


@seeded
class ScansWhatIsNotOffered(Spoiler):
    """A state without scans has no keys."""

    reads_requests = True
    stops: dict[int, int]

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.SCAN:
            self.stops = {**getattr(self, "stops", {}), fields[1]: fields[STOP]}
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.UNSUPPORTED and fields[1] in getattr(self, "stops", {}):
            return [pack([Type.PAGE, fields[1], 1, "x", b"", self.stops[fields[1]], None, 0, [], [], []])]
        return [payload]


@seeded
class BeginsExpiredScansAgain(_SpoilsScans):
    """A view that is not there is taken for none."""

    at_owners = True

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[VIEW] = b""
        return fields


@seeded
class ViewsAreNumbers(_SpoilsPages):
    """The id of a view does not say whose it is."""

    at_owners = True

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[PAGE_VIEW] = fields[PAGE_VIEW][16:]
        return fields


@seeded
class KeepsAnyNumberOfViews(Spoiler):
    """A client may begin as many scans as it likes."""

    at_owners = True

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.PAGE:
            self.last = fields
        elif fields[0] == Type.FAILURE and fields[2] == Code.OVERLOADED and hasattr(self, "last"):
            return [pack([Type.PAGE, fields[1], *self.last[2:]])]
        return [payload]
