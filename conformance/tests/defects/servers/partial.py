"""Servers that give wrong parts of values and wrong pages of descriptions. Each docstring says what they do wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from qstate_conformance.codes import Type
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded

#: Where the fields of GetPart and Part are.
OPTIONS, PART, MAP_KEYS, PLACE, START = 5, 7, 8, 9, 10
RESULT, AFTER, VERSION = 4, 5, 7


class _SpoilsParts(Spoiler):
    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.PART else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


class _SpoilsRequests(Spoiler):
    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.GET_PART else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


@seeded
class EndsAfterOnePage(_SpoilsParts):
    """Each page of a map is the last one."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[AFTER] = None
        return fields


@seeded
class PagesFromTheBeginning(_SpoilsRequests):
    """The map key after which a page begins is ignored."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[PLACE] = None
        return fields


@seeded
class SlicesFromTheBeginning(_SpoilsRequests):
    """The position at which a slice begins is ignored."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if fields[PART] == "slice":
            fields[START] = 0
        return fields


@seeded
class GivesTheFirstEntryAlone(_SpoilsRequests):
    """Of the entries that are asked for, only the first is given."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[MAP_KEYS] = fields[MAP_KEYS][:1]
        return fields


@seeded
class NoEntriesAreAnEmptyMap(_SpoilsParts):
    """When none of the entries is there, the part is an empty map."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[RESULT] = b"\x80" if fields[RESULT] is None else fields[RESULT]
        return fields


@seeded
class PartsAreLive(_SpoilsRequests):
    """Parts of committed values show the running epoch."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[OPTIONS] = {name: value for name, value in fields[OPTIONS].items() if name != "isolation"}
        return fields


@seeded
class OneVersionForAll(_SpoilsParts):
    """All values have one version."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[VERSION] = fields[VERSION] and b"1"
        return fields


@seeded
class EachPieceHasAVersion(_SpoilsParts):
    """The pieces of a value that does not change have different versions."""

    numbers = count()

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[VERSION] = fields[VERSION] and b"%d" % next(self.numbers)
        return fields


class _SpoilsDescriptions(Spoiler):
    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.DESCRIPTION else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


@seeded
class DescribesOnePage(_SpoilsDescriptions):
    """Each page of descriptions is the last one."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return fields[:3]


@seeded
class DescribesInReverse(_SpoilsDescriptions):
    """The last entry of a page of descriptions comes first."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[2] = fields[2][::-1]
        return fields
