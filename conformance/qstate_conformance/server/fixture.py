"""What a server under test holds: the job, its states with their entries, who owns what, and the limits to set.

Rules of this module: data, and how it is written as JSON for other languages. It imports nothing of qstate: a
server is loaded with this, whatever it is written in. docs/reference/conformance-fixture.md explains it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, cast
from zlib import crc32

from qstate_conformance.corpus import corpus, value_of
from qstate_conformance.key_groups import Column, Key, group_of
from qstate_conformance.server.packing import array_of, map_of, pack

__all__ = [
    "CHANGES",
    "CHANGING",
    "COMMITTED_EPOCH",
    "DYING",
    "GAP",
    "HISTORIES",
    "HISTORY",
    "HISTORY_KEYS",
    "JOB",
    "LIMITS",
    "LIVE_EPOCH",
    "MAX_PARALLELISM",
    "MOVED",
    "NAMES",
    "OLDEST_EPOCH",
    "OWNED",
    "OWN_SERIALIZER",
    "SILENT",
    "SILENT_JOB",
    "STALE",
    "STATES",
    "TOKEN",
    "TYPED_HISTORY",
    "UNCOMMITTED",
    "UNREACHABLE",
    "Before",
    "Change",
    "Contents",
    "Entry",
    "History",
    "Limits",
    "State",
    "as_json",
    "key_types_of",
    "key_with_owner",
    "state",
    "state_by_key_types",
]

#: The elements of a list; the entries of a map; the bytes of anything else.
Contents = bytes | tuple[bytes, ...] | tuple[tuple[Key, bytes], ...]

JOB = "conformance"
MAX_PARALLELISM = 128
#: The last epoch that Spark has committed: committed reads are of it.
COMMITTED_EPOCH = 7
#: The one after it, which is sealed and not committed yet: live reads are of it.
LIVE_EPOCH = 8
#: The key groups with an owner, [start, stop) each, and those without.
OWNED = ((0, 40), (40, 64), (80, 128))
GAP = (64, 80)
TOKEN = b"open sesame"
#: Writes text as its UTF-8 bytes in reverse order, which is not MessagePack.
OWN_SERIALIZER = "conformance.reversed"
MSGPACK = "msgpack"
#: States whose location is wrong on purpose; they have no entries. The owner of MOVED holds no such state id, and
#: at the address of UNREACHABLE no process listens. The owner of SILENT answers nothing. The owner of DYING closes the
#: connection at a Get, once for each key.
MOVED = "moved"
UNREACHABLE = "unreachable"
SILENT = "silent"
DYING = "dying"
#: A job whose states cannot be located: its location oracle never answers.
SILENT_JOB = "silent job"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits to configure in the proxy, so that laws can reach every limit."""

    max_frame: int = 49_152
    max_keys: int = 10_000
    max_connections: int = 64
    #: Requests in flight, of all connections together; one more is OVERLOADED.
    max_requests: int = 64
    #: Requests in flight of one connection; with so many, it is read no further.
    max_requests_per_connection: int = 32
    handshake_timeout_ms: int = 1500
    #: A client that takes nothing of its answers for so long loses its connection.
    unread_timeout_ms: int = 1500


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Entry:
    """What a state holds for one key in one namespace."""

    key: Key
    contents: Contents
    namespace: Key | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """What a state held for one key at the end of the committed epoch, which the epoch after it changed.

    `contents` is None for nothing.
    """

    key: Key
    contents: Contents | None
    namespace: Key | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """How an epoch changed a state: `value` is what the key, or the entry of its map, has then; None: it is gone."""

    epoch: int
    key: Key
    value: bytes | None
    namespace: Key | None = None
    map_key: Key | None = None

    @property
    def operation(self) -> int:
        """Its number in Changes."""
        return (1 if self.map_key is None else 3) + (self.value is None)


@dataclass(frozen=True)
class State:
    """A queryable state of the job. `entries` are what it holds now, `before` is what it held in their place."""

    name: str
    kind: str
    key_types: tuple[str, ...]
    entries: tuple[Entry, ...]
    serializer: str = MSGPACK
    value_type: str = "object"
    before: tuple[Before, ...] = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # In a failing example, a state is its name, not all of its entries.
        printer.text(f"state({self.name!r})")

    @property
    def absent(self) -> Key:
        """A key that has an owner and no value, in no namespace."""
        return key_with_owner("absent", self.key_types)

    @property
    def homeless(self) -> Key:
        """A key whose group has no owner."""
        return _key_in("homeless", self.key_types, range(*GAP))

    @property
    def committed(self) -> tuple[Entry, ...]:
        """What it held at the end of the committed epoch."""
        changed = {(found.namespace, found.key): found.contents for found in self.before}
        same = [entry for entry in self.entries if (entry.namespace, entry.key) not in changed]
        return (*same, *(Entry(key, held, space) for (space, key), held in changed.items() if held is not None))

    def answer_of(self, entry: Entry) -> bytes:
        """What a Get of this entry is answered with. A map's entries may come in another order."""
        if isinstance(entry.contents, bytes):
            return entry.contents
        if self.kind == "list":
            return array_of([self._embedded(element) for element in cast(tuple[bytes, ...], entry.contents)])
        pairs = cast(tuple[tuple[Key, bytes], ...], entry.contents)
        return map_of([(pack(key), self._embedded(value)) for key, value in pairs])

    def _embedded(self, data: bytes) -> bytes:
        return data if self.serializer == MSGPACK else pack(data)


@dataclass(frozen=True, slots=True)
class History:
    """A state with one owner, whose changes can be polled. Those of `LIVE_EPOCH` are sealed and not committed."""

    state: State
    changes: tuple[Change, ...]


def _candidates(what: str, key_types: tuple[str, ...]) -> Iterator[Key]:
    base = crc32(what.encode()) * 1000
    for number in range(1000):
        text = f"{what} {number}"
        column: Mapping[str, Column] = {
            "string": text,
            "binary": text.encode(),
            "bigint": base + number,
            "boolean": bool(number % 2),
            "date": date.fromordinal(1 + (base + number) % 3_000_000),
            "timestamp": datetime.fromtimestamp(base % 10**9 + number, timezone.utc),
            "decimal(38,2)": Decimal(f"{base + number}E-2"),
        }
        columns = tuple(column[kind] for kind in key_types)
        yield columns if len(columns) > 1 else columns[0]


def _key_in(what: str, key_types: tuple[str, ...], groups: Iterable[int]) -> Key:
    wanted = set(groups)
    return next(key for key in _candidates(what, key_types) if group_of(key, MAX_PARALLELISM) in wanted)


def key_with_owner(what: str, key_types: tuple[str, ...], owner: int | None = None) -> Key:
    """A key of these types, made from this text, whose group is in `OWNED`, or in that range of it."""
    ranges = OWNED if owner is None else (OWNED[owner],)
    return _key_in(what, key_types, (group for start, stop in ranges for group in range(start, stop)))


def _has_owner(key: Key) -> bool:
    return not GAP[0] <= group_of(key, MAX_PARALLELISM) < GAP[1]


def _reversed(text: str) -> bytes:
    return text.encode()[::-1]


_TYPE_NAMES: Mapping[type, str] = {
    str: "string",
    bytes: "binary",
    int: "bigint",
    bool: "boolean",
    date: "date",
    datetime: "timestamp",
}


def key_types_of(key: Key) -> tuple[str, ...]:
    """The types of a key's columns."""
    columns = key if isinstance(key, tuple) else (key,)
    return tuple(
        f"decimal(38,{-int(column.as_tuple().exponent)})" if isinstance(column, Decimal) else _TYPE_NAMES[type(column)]
        for column in columns
    )


def _corpus_entries(*key_types: str) -> tuple[Entry, ...]:
    """The corpus's keys of these types, each with a value of its own."""
    found = []
    for number, item in enumerate(corpus()["keys"]):
        key = value_of(item["key"])
        if key_types_of(key) == key_types:
            found.append(Entry(key, pack(number)))
    return tuple(found)


def _corpus_values() -> tuple[Entry, ...]:
    """The corpus's values, by name."""
    found = [item for item in corpus()["values"] if (item["kind"], item["serializer"]) == ("value", MSGPACK)]
    return tuple(Entry(_placed(item["name"]), bytes.fromhex(item["hex"])) for item in found)


def _placed(name: str) -> Key:
    return key_with_owner(name, ("string",))


_WINDOW = (1_356_998_400_000, 1_357_002_000_000)
#: As Spark's windows are.
_HOUR = (datetime(2013, 7, 18, 5, tzinfo=timezone.utc), datetime(2013, 7, 18, 6, tzinfo=timezone.utc))
_TEXT, _NUMBER, _PLACE = ("string",), ("bigint",), ("string", "bigint")
_MOMENT = ("boolean", "date", "timestamp", "decimal(38,2)")

STATES: tuple[State, ...] = (
    State(
        "temperature",
        "value",
        _TEXT,
        (
            *_corpus_entries(*_TEXT),
            *_corpus_values(),
            Entry("JFK", pack(100.04), "2013-07-18"),
            Entry("JFK", pack(71.06), 60),
            Entry("JFK", pack(-3.5), _WINDOW),
            Entry("JFK", pack("under binary"), b"\x00\xff"),
            Entry("N14228", pack("only here"), "2013-07-18"),
            Entry(_placed("changed"), pack("the running epoch's")),
            Entry(_placed("new"), pack("of the running epoch alone")),
        ),
        before=(
            Before(_placed("changed"), pack("what was committed")),
            Before(_placed("new"), None),
            Before(_placed("deleted"), pack("committed alone")),
            Before("N14228", pack("what was committed in a namespace"), "2013-07-18"),
        ),
    ),
    State(
        "label",
        "value",
        _NUMBER,
        (
            *(Entry(entry.key, _reversed(f"label of {entry.key!s}")) for entry in _corpus_entries(*_NUMBER)),
            Entry(key_with_owner("empty", _NUMBER), b""),
            Entry(42, _reversed("in a namespace"), 60),
            Entry(key_with_owner("changed", _NUMBER), b""),
        ),
        OWN_SERIALIZER,
        "str",
        before=(Before(key_with_owner("changed", _NUMBER), _reversed("what was committed")),),
    ),
    State(
        "delays",
        "list",
        _TEXT,
        (
            Entry("JFK", (pack(3), pack(-1), pack(0))),
            Entry("N14228", (pack([1, "a"]), pack({"late": True}), pack(b"\x00"))),
            Entry(_placed("long"), tuple(pack(number) for number in range(300))),
            Entry("JFK", (pack("in a window"),), _WINDOW),
            Entry(_placed("grown"), (pack("committed"), pack("not yet"))),
            Entry(_placed("replaced"), (pack("not yet"),)),
        ),
        before=(
            Before(_placed("grown"), (pack("committed"),)),
            Before(_placed("replaced"), (pack(1), pack(2), pack(3))),
            Before(_placed("cleared"), (pack("committed alone"),)),
        ),
    ),
    State(
        "remarks",
        "list",
        _NUMBER,
        (
            Entry(1, (_reversed("one"), _reversed("two"), b"", _reversed("one"))),
            Entry(42, (_reversed("in a namespace"),), "2013-07-18"),
        ),
        OWN_SERIALIZER,
        "str",
    ),
    State(
        "visits",
        "map",
        _TEXT,
        (
            Entry("JFK", (("LAX", pack(2)), ("HNL", pack(None)))),
            Entry("", (("LAX", pack(2)), ("SFO", pack([1, 2])), ("Zürich", pack("seen")), ("", pack(0)))),
            Entry("JFK", (("BOS", pack(1)),), 60),
            Entry(_placed("touched"), (("LAX", pack(3)), ("BOS", pack(1)))),
        ),
        before=(
            Before(_placed("touched"), (("LAX", pack(2)), ("SFO", pack(5)))),
            Before(_placed("cleared"), (("LAX", pack("committed alone")),)),
        ),
    ),
    State(
        "gates",
        "map",
        _PLACE,
        (
            Entry(("EWR", 1545), ((("A", 1), _reversed("first")), (("A", 2), b""), (("B", -7), _reversed("last")))),
            Entry(("EWR", 1545), ((("C", 3), _reversed("in a window")),), _WINDOW),
        ),
        OWN_SERIALIZER,
        "str",
    ),
    State(
        "distance",
        "reducing",
        _NUMBER,
        (
            *(Entry(entry.key, pack(number * 1000)) for number, entry in enumerate(_corpus_entries(*_NUMBER))),
            Entry(42, pack(12_345), "2013-07-18"),
            Entry(key_with_owner("summed", _NUMBER), pack(700)),
            # Short keys and values, of which a large Get may ask for thousands.
            *(Entry(number, pack(3 * number)) for number in range(2, 30) if _has_owner(number)),
        ),
        value_type="int",
        before=(Before(key_with_owner("summed", _NUMBER), pack(400)),),
    ),
    State(
        "meanDelay",
        "aggregating",
        _PLACE,
        (
            *(Entry(entry.key, pack(2.5)) for entry in _corpus_entries(*_PLACE)),
            Entry(("EWR", 1545), pack(-1.25), _WINDOW),
            Entry(key_with_owner("meant", _PLACE), pack(3.5)),
        ),
        value_type="float",
        before=(Before(key_with_owner("meant", _PLACE), pack(1.5)),),
    ),
    State("Höhe über NN ✈", "value", ("binary",), _corpus_entries("binary")),
    State("byTwoTexts", "value", ("string", "string"), _corpus_entries("string", "string")),
    State("byTwoNumbers", "value", ("bigint", "bigint"), _corpus_entries("bigint", "bigint")),
    State(
        "byMoment",
        "value",
        _MOMENT,
        (
            *_corpus_entries(*_MOMENT),
            *(Entry(entry.key, pack("in a window"), _HOUR) for entry in _corpus_entries(*_MOMENT)),
            *(Entry(entry.key, pack("of a kind"), True) for entry in _corpus_entries(*_MOMENT)),
            *(Entry(entry.key, pack("of a price"), Decimal("1.00")) for entry in _corpus_entries(*_MOMENT)),
            *(Entry(entry.key, pack("of a number"), 1) for entry in _corpus_entries(*_MOMENT)),
        ),
    ),
    State("byThree", "value", ("binary", "bigint", "string"), _corpus_entries("binary", "bigint", "string")),
    State(
        "blobs",
        "value",
        _TEXT,
        (
            # One frame holds `fits`, but not `half` and `other half` together, nor `whole` at all.
            Entry(_placed("fits"), pack(b"f" * 48_000)),
            Entry(_placed("half"), pack(b"h" * 30_000)),
            Entry(_placed("other half"), pack(b"o" * 30_000)),
            Entry(_placed("whole"), pack(b"w" * 50_000)),
        ),
        value_type="bytes",
    ),
)


#: A state of which nothing has been committed; its entries are those of epoch 0.
UNCOMMITTED = State("uncommitted", "value", _TEXT, (Entry("JFK", pack("not committed")),))
#: A state whose committed view may lack any commit after `COMMITTED_EPOCH`.
STALE = State("stale", "value", _TEXT, (Entry("JFK", pack("of long ago")),))
#: A state that is another one, of the next of these kinds, after each Locate.
CHANGING = (
    State("changing", "list", _TEXT, (Entry("JFK", (pack(1), pack(2))),)),
    State("changing", "value", _TEXT, (Entry("JFK", pack("a value")),)),
)
#: The oldest epoch whose changes are still stored.
OLDEST_EPOCH = 3
HISTORY, TYPED_HISTORY = "history", "typedHistory"
HISTORY_KEYS = ("JFK", "", "Zürich", *(f"key {number}" for number in range(40)))
#: Those of HISTORY, a value state.
CHANGES: tuple[Change, ...] = (
    *(
        Change(epoch, key, pack([epoch, key, "x" * 300]) if (epoch + number) % 7 else None)
        for epoch in range(OLDEST_EPOCH, LIVE_EPOCH + 1)
        for number, key in enumerate(HISTORY_KEYS)
        if (epoch + number) % 3 == 0 and epoch != 5
    ),
    *(Change(epoch, "JFK", pack(epoch), "2013-07-18") for epoch in (4, 6)),
)
_BYTES_AND_TEXT = ("binary", "bigint", "string")
_EVERY_KEY: tuple[Key, ...] = tuple(value_of(item["key"]) for item in corpus()["keys"])
#: The keys of TYPED_HISTORY have columns of every type; its namespaces and map keys are the corpus's keys.
_TYPED_KEYS: tuple[Key, ...] = tuple(
    (*moment.key, *other.key)  # type: ignore[misc]
    for moment in _corpus_entries(*_MOMENT)
    for other in _corpus_entries(*_BYTES_AND_TEXT)
)
_TYPED_CHANGES: tuple[Change, ...] = (
    *(
        Change(epoch, key, pack([epoch, number]) if (epoch + number) % 4 else None, _EVERY_KEY[-number], map_key)
        for epoch in (OLDEST_EPOCH, COMMITTED_EPOCH)
        for key in _TYPED_KEYS
        for number, map_key in enumerate(_EVERY_KEY)
    ),
    *(Change(COMMITTED_EPOCH - 1, key, None) for key in _TYPED_KEYS),
)
HISTORIES = (
    History(State(HISTORY, "value", _TEXT, ()), CHANGES),
    History(State(TYPED_HISTORY, "map", (*_MOMENT, *_BYTES_AND_TEXT), ()), _TYPED_CHANGES),
)
#: The name of every state.
NAMES = frozenset(
    {MOVED, UNREACHABLE, SILENT, DYING, UNCOMMITTED.name, STALE.name, CHANGING[0].name}
    | {found.name for found in STATES}
    | {found.state.name for found in HISTORIES}
)


def state(name: str) -> State:
    """The state of that name."""
    return next(found for found in STATES if found.name == name)


def state_by_key_types(*key_types: str) -> State | None:
    """The first state that is keyed by columns of these types, if there is one."""
    return next((found for found in STATES if found.key_types == key_types), None)


def as_json() -> str:
    """The fixture for servers in other languages. Binary and large integers are written as in the corpus."""
    document = {
        "about": "The state that a server under test holds. docs/reference/conformance-fixture.md explains it.",
        "job": JOB,
        "committed_epoch": COMMITTED_EPOCH,
        "live_epoch": LIVE_EPOCH,
        "max_parallelism": MAX_PARALLELISM,
        "owned": OWNED,
        "gap": GAP,
        "token": TOKEN,
        "limits": {name: getattr(LIMITS, name) for name in Limits.__slots__},
        "states": [_state_as_json(found) for found in STATES],
        "uncommitted": _state_as_json(UNCOMMITTED),
        "stale": _state_as_json(STALE),
        "changing": {"name": CHANGING[0].name, **{found.kind: _state_as_json(found) for found in CHANGING}},
        **{
            name: {"name": name, "kind": "value", "serializer": MSGPACK, "key_types": _TEXT}
            for name in (MOVED, UNREACHABLE, SILENT, DYING)
        },
        "silent_job": SILENT_JOB,
        "history": _history_as_json(HISTORIES[0]),
        "typed_history": _history_as_json(HISTORIES[1]),
    }
    return json.dumps(_plain(document), ensure_ascii=False, indent=1)


def _state_as_json(found: State) -> dict[str, Any]:
    return {
        "name": found.name,
        "kind": found.kind,
        "serializer": found.serializer,
        "key_types": found.key_types,
        "value_type": found.value_type,
        "absent_key": found.absent,
        "homeless_key": found.homeless,
        "entries": [_entry_as_json(found, entry) for entry in found.entries],
        "before": [_entry_as_json(found, before) for before in found.before],
    }


def _history_as_json(found: History) -> dict[str, Any]:
    described = found.state
    return {
        "name": described.name,
        "kind": described.kind,
        "serializer": described.serializer,
        "key_types": described.key_types,
        "oldest_epoch": OLDEST_EPOCH,
        "changes": [
            {**{name: getattr(one, name) for name in Change.__slots__}, "operation": one.operation}
            for one in found.changes
        ],
    }


def _entry_as_json(found: State, entry: Entry | Before) -> dict[str, Any]:
    held = None if entry.contents is None else Entry(entry.key, entry.contents)
    return {
        "namespace": entry.namespace,
        "key": entry.key,
        "group": group_of(entry.key, MAX_PARALLELISM),
        "contents": entry.contents,
        "answer": held and found.answer_of(held),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, datetime):
        return {"$timestamp": [int(value.timestamp()), value.microsecond * 1000]}
    if isinstance(value, date | Decimal):
        return {f"${type(value).__name__.lower()}": str(value)}
    if isinstance(value, int) and abs(value) >= 1 << 53:
        return {"$integer": str(value)}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
