"""The line protocol for clients that are written in Python: lines to keys, views and errors to lines.

Rules of this module: what the two drivers of qstate's own clients share. It imports nothing that tests need, for a
driver is only the client and a little glue.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import msgpack

from qstate.client import ChangeBatch, ChangeKind, ClientTls, MapPage, StateChange
from qstate.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    QueryError,
    SerializationError,
    UnsupportedOperation,
)
from qstate.keys import Key, Namespace, decode_extension
from qstate.serializers import Serializer
from qstate.views import ReadOnlyListState, ReadOnlyMapState, ReadOnlyState, ReadOnlyValueState

__all__ = [
    "Followed",
    "ReversedText",
    "Scanned",
    "Views",
    "answer",
    "contents",
    "described",
    "error_of",
    "failure",
    "following",
    "key_of",
    "options",
    "part_of",
    "reported",
    "selection",
    "tls_of",
]

#: How long a poll of a subscription may wait.
PROGRESS_S = 1.0
SAFE_INTEGER = 2**53 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: What the suite calls with each kind's view; each of them must refuse.
_VIEW_MUTATORS: Mapping[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "value": (("update", (1,)), ("clear", ())),
    "list": (("add", (1,)), ("add_all", ([1],)), ("update", ([1],)), ("clear", ())),
    "map": (("put", ("k", 1)), ("put_all", ({"k": 1},)), ("remove", ("k",)), ("clear", ())),
    "reducing": (("add", (1,)), ("clear", ())),
    "aggregating": (("add", (1,)), ("clear", ())),
}
_UNTAG: Mapping[str, Callable[[str], Any]] = {"$hex": bytes.fromhex, "$integer": int, "$float": float}
_LIST_MUTATORS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("append", lambda value: value.append(1)),
    ("clear", lambda value: value.clear()),
    ("extend", lambda value: value.extend([1])),
    ("insert", lambda value: value.insert(0, 1)),
    ("pop", lambda value: value.pop()),
    ("remove", lambda value: value.remove(value[0])),
    ("reverse", lambda value: value.reverse()),
    ("sort", lambda value: value.sort(key=str)),
    ("item assignment", lambda value: value.__setitem__(0, "changed")),
    ("item deletion", lambda value: value.__delitem__(0)),
    ("+=", lambda value: value.__iadd__([1])),
    ("*=", lambda value: value.__imul__(2)),
)
_DICT_MUTATORS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("clear", lambda value: value.clear()),
    ("pop", lambda value: value.pop(next(iter(value)))),
    ("popitem", lambda value: value.popitem()),
    ("setdefault", lambda value: value.setdefault("k", 1)),
    ("update", lambda value: value.update({"k": 1})),
    ("item assignment", lambda value: value.__setitem__("k", 1)),
    ("item deletion", lambda value: value.__delitem__(next(iter(value)))),
    ("|=", lambda value: value.__ior__({"k": 1})),
)


class ReversedText(Serializer):
    """The serializer that the feature `serializer` promises: text as its UTF-8 bytes in reverse."""

    name = "conformance.reversed"

    def dumps(self, value: str) -> bytes:
        return value.encode()[::-1]

    def loads(self, data: bytes) -> str:
        return data[::-1].decode()


class Views:
    """The views that gets have kept for `mutate`."""

    def __init__(self) -> None:
        self._views: dict[int, ReadOnlyState] = {}
        self._numbers = count(1)

    def entry(self, view: ReadOnlyState | None, keep: bool = False) -> dict[str, Any]:
        """What a get reports about one key."""
        if view is None:
            return {"found": False}
        entry: dict[str, Any] = {"found": True, "epoch": view.epoch, "value": reported(contents(view))}
        if keep:
            number = entry["view"] = next(self._numbers)
            self._views[number] = view
        return entry

    def part(self, found: Any) -> dict[str, Any]:
        """What `get_part` reports."""
        if isinstance(found, int):
            return {"size": found}
        if isinstance(found, MapPage):
            return {**self.entry(found.view), "after": reported(found.after)}
        return self.entry(found)

    def mutate(self, number: int) -> dict[str, Any]:
        """Try everything on a view, and read it again."""
        view = self._views[number]
        attempts = list(_attempts(view))
        return {"attempts": attempts, "value": reported(contents(view))}


def described(client: str, *more: str) -> dict[str, Any]:
    """The description of a driver."""
    of_requests = ["async", "batch", "demands", "parts", "retry", "scan", "subscribe"]
    features = [*of_requests, "direct", "reached", "serializer", "tls", *more]
    return {"protocol": 1, "client": client, "features": features}


def tls_of(fields: Mapping[str, Any]) -> ClientTls | None:
    """The TLS settings of a client."""
    tls = fields.get("tls")
    return None if tls is None else ClientTls(ca_file=tls["ca_file"], server_name=tls.get("server_name") or "")


def answer(number: int, body: Mapping[str, Any]) -> str:
    """The line of a success."""
    return json.dumps({"id": number, "ok": body}, allow_nan=False)


def failure(number: int, error: Exception) -> str:
    """The line of a failure."""
    return json.dumps({"id": number, "error": error_of(error)})


def error_of(error: Exception) -> dict[str, str]:
    """The code and message of an error."""
    if isinstance(error, QueryError):
        code = error.code.name
    elif isinstance(error, ClosedError):
        code = "CLOSED"
    elif isinstance(error, SerializationError):
        code = "UNREADABLE"
    elif isinstance(error, ConfigError | ValueError | TypeError):
        code = "INVALID"
    else:
        code = "CRASHED"
    return {"code": code, "message": f"{type(error).__name__}: {error}"}


def options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `get` and `get_many`."""
    given: dict[str, Any] = {"timeout_s": fields["timeout_ms"] / 1000}
    if fields.get("namespace") is not None:
        given["namespace"] = key_of(fields["namespace"])
    if fields.get("isolation") is not None:
        given["isolation"] = fields["isolation"]
    if fields.get("min_epoch") is not None:
        given["min_epoch"] = fields["min_epoch"]
    if fields.get("max_staleness_ms") is not None:
        given["max_staleness_s"] = fields["max_staleness_ms"] / 1000
    return given


def selection(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `scan` and `count`."""
    given = options({**fields, "namespace": None})
    if fields.get("prefix") is not None:
        given["prefix"] = key_of(fields["prefix"])
    if "namespace" in fields:
        given["namespace"] = key_of(fields["namespace"])
    if fields.get("key_groups") is not None:
        given["key_groups"] = tuple(fields["key_groups"])
    if fields.get("limit") is not None:
        given["limit"] = fields["limit"]
    return given


#: The methods of a client that read parts, and what each takes.
_PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "entries": ("get_entries", ("map_keys",)),
    "page": ("get_page", ("after", "limit")),
    "slice": ("get_slice", ("start", "stop")),
    "size": ("get_size", ()),
    "large": ("get_large", ()),
}


def part_of(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method of a client that reads a part, and its keyword arguments."""
    method, names = _PARTS[fields["part"]]
    given = {name: key_of(fields[name]) for name in names if fields.get(name) is not None}
    return method, {**options(fields), **given}


class Scanned:
    """What a scan has given: the answer of the operation, and whether it is over."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._error: dict[str, str] | None = None

    @property
    def failed(self) -> bool:
        return self._error is not None

    def add(self, key: Key, namespace: Namespace, view: ReadOnlyState | None) -> None:
        """Note an entry."""
        told = {"key": reported(key), "namespace": reported(namespace)}
        if view is not None:
            told |= {"epoch": view.epoch, "value": reported(contents(view))}
        self._entries.append(told)

    def fail(self, error: Exception) -> None:
        """Note the failure of an entry, which names its key, or else of the scan."""
        if isinstance(error, QueryError) and "key" in error.details:
            self._entries.append({"error": error_of(error)})
        else:
            self._error = error_of(error)

    def answer(self) -> dict[str, Any]:
        told: dict[str, Any] = {"entries": self._entries, "count": len(self._entries)}
        return told if self._error is None else {**told, "error": self._error}


def following(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `subscribe`."""
    given: dict[str, Any] = {"progress_s": PROGRESS_S, "patience_s": fields["timeout_ms"] / 1000}
    if fields.get("prefix") is not None:
        given["prefix"] = key_of(fields["prefix"])
    if "namespace" in fields:
        given["namespace"] = key_of(fields["namespace"])
    if fields.get("from_epoch") is not None:
        given["from_epoch"] = fields["from_epoch"]
    return given


class Followed:
    """What a subscription has given up to an epoch: the answer of the operation, and whether it is over."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._until_epoch = fields["until_epoch"]
        self._until: float = time.monotonic() + fields["timeout_ms"] / 1000
        self._batches: list[dict[str, Any]] = []
        self._error: dict[str, str] | None = None
        self.over = False

    @property
    def left_s(self) -> float:
        """How long to wait for the next batch."""
        return max(0.0, self._until - time.monotonic())

    def add(self, batch: ChangeBatch | None) -> None:
        """Note a batch; None when none came in time."""
        if batch is None:
            self.fail(DeadlineExceeded())
            return
        if batch.changes:
            changes = [_change(change) for change in batch]
            self._batches.append({"epoch": batch.epoch, "snapshot": batch.snapshot, "changes": changes})
        self.over = batch.complete >= self._until_epoch

    def fail(self, error: Exception) -> None:
        """Note the failure of the subscription."""
        self._error, self.over = error_of(error), True

    def answer(self) -> dict[str, Any]:
        told: dict[str, Any] = {"batches": self._batches}
        return told if self._error is None else {**told, "error": self._error}


def _change(change: StateChange) -> dict[str, Any]:
    told = {"change": change.kind.value, "key": reported(change.key), "namespace": reported(change.namespace)}
    if change.kind in (ChangeKind.PUT_ENTRY, ChangeKind.REMOVE_ENTRY):
        told["map_key"] = reported(change.map_key)
    if change.kind not in (ChangeKind.DELETE, ChangeKind.REMOVE_ENTRY):
        told["value"] = reported(change.value)
    return told


def key_of(tagged: Any) -> Any:
    """A key or namespace (or what is none, and must be refused) from its JSON."""
    if isinstance(tagged, list):
        return tuple(key_of(column) for column in tagged)
    if isinstance(tagged, dict):
        ((tag, value),) = tagged.items()
        if tag == "$map":
            return {key_of(key): key_of(entry) for key, entry in value}
        if tag == "$ext":
            code, payload = value[0], bytes.fromhex(value[1])
            return decode_extension(b"\xc7" + bytes((len(payload), code % 256)) + payload)
        return _UNTAG[tag](value)
    return tagged


def contents(view: ReadOnlyState) -> Any:
    """The contents of a view, read through its own accessors."""
    if isinstance(view, ReadOnlyMapState):
        return dict(view.entries())
    return view.value() if isinstance(view, ReadOnlyValueState) else view.get()  # type: ignore[attr-defined]


def reported(value: Any) -> Any:
    """The JSON of a value."""
    if isinstance(value, msgpack.ExtType):
        return {"$ext": [value.code, value.data.hex()]}
    if isinstance(value, dict):
        return {"$map": [[reported(key), reported(entry)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [reported(element) for element in value]
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, UUID):
        return {"$ext": [5, value.hex]}
    if isinstance(value, timedelta):
        return {"$ext": [6, str(value // timedelta(microseconds=1)).encode().hex()]}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INTEGER:
        return {"$integer": str(value)}
    return value


def _moment(value: datetime) -> dict[str, Any]:
    if value.tzinfo is None:
        return {"$datetime": value.isoformat()}
    seconds, rest = divmod(value - EPOCH, timedelta(seconds=1))
    return {"$timestamp": [seconds, rest // timedelta(microseconds=1) * 1000]}


def _attempts(view: ReadOnlyState) -> Iterator[dict[str, Any]]:
    for name, arguments in _VIEW_MUTATORS[view.kind.value]:
        yield _attempt("the view", name, partial(getattr(view, name), *arguments))
    if isinstance(view, ReadOnlyListState | ReadOnlyMapState):
        inner = view.get() if isinstance(view, ReadOnlyListState) else view.values()
    else:
        inner = contents(view)
    yield from _attempts_on(inner, "the contents")


def _attempts_on(value: Any, where: str) -> Iterator[dict[str, Any]]:
    # The innermost first: what is emptied has nothing left inside to try.
    if isinstance(value, list | tuple):
        for index, element in enumerate(value):
            yield from _attempts_on(element, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, element in list(value.items()):
            yield from _attempts_on(element, f"{where}[{key!r}]")
    if value and isinstance(value, list | dict):
        for name, act in _LIST_MUTATORS if isinstance(value, list) else _DICT_MUTATORS:
            yield _attempt(where, name, partial(act, value))


def _attempt(where: str, name: str, act: Callable[[], Any]) -> dict[str, Any]:
    try:
        act()
    except UnsupportedOperation:
        return {"on": where, "do": name, "refused": True}
    except (LookupError, TypeError, ValueError, StopIteration):
        # An earlier attempt has emptied it, which was reported.
        pass
    return {"on": where, "do": name, "refused": False}
