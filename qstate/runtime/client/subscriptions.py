"""What a subscription is about, and what it gives: changes, in batches of one epoch each, and the token of each place.

Rules of this module: arguments in, `Wanted` or an error out; runs in, changes out. It knows neither requests nor when
they are sent.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from types import EllipsisType
from typing import Any, NamedTuple

import msgpack
from msgspec import Struct
from msgspec.structs import replace

from qstate.errors import ConfigError, Detail, query_error
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, Namespace, check_key, encode_key, key_group
from qstate.protocol.fields import MAX_INT64, Prefix
from qstate.protocol.limits import DEFAULT_MAX_FRAME, MAX_DEADLINE_MS
from qstate.protocol.messages import Page, Run, Scan
from qstate.runtime.client.arguments import check_names, check_timeout, keys_of
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.client.scanning import Selected
from qstate.views import ReadOnlyState, ViewMaker

__all__ = [
    "DEFAULT_PATIENCE_S",
    "DEFAULT_PROGRESS_S",
    "OF_OTHER_KEYS",
    "ChangeBatch",
    "ChangeKind",
    "Place",
    "Span",
    "StateChange",
    "Wanted",
    "changes_of",
    "place_in",
    "token_of",
    "wanted_of",
]

DEFAULT_PROGRESS_S = 5.0
DEFAULT_PATIENCE_S = 60.0
#: A proxy tries so long to read the keys of a snapshot whose owner is missing.
SNAPSHOT_WAIT_MS = 500
#: What is said of a token whose subscription selected something else.
OF_OTHER_KEYS = "the token is of a subscription to other keys: subscribe to these without it"


class ChangeKind(Enum):
    """What happened to a key."""

    #: The key has this value, which replaces any earlier one.
    PUT = "put"
    #: The key has no value any more.
    DELETE = "delete"
    #: These elements came at the end of the key's list.
    ADD = "add"
    #: The entry of the key's map has this value.
    PUT_ENTRY = "put_entry"
    #: The key's map has no such entry any more.
    REMOVE_ENTRY = "remove_entry"


_KINDS = {
    1: ChangeKind.PUT,
    2: ChangeKind.DELETE,
    3: ChangeKind.PUT_ENTRY,
    4: ChangeKind.REMOVE_ENTRY,
    5: ChangeKind.ADD,
}


class StateChange(Struct, frozen=True):
    """One change of one key. `map_key` is that of the entry for changes of a map's entries, otherwise None."""

    epoch: int
    kind: ChangeKind
    key: Key
    namespace: Namespace
    map_key: Key | None
    _view: ReadOnlyState | None

    @property
    def value(self) -> object:
        """The value that was put, the elements that were added, None for a deletion. Decoded on access, read-only.

        Raises `SerializationError` when it cannot be decoded.
        """
        return None if self._view is None else self._view.contents()

    def read_as(
        self, typed: Callable[[ReadOnlyState], ReadOnlyState], map_key: Callable[[Any], Any] | None
    ) -> StateChange:
        """The change with another view of its value, and with its map's key in another form."""
        view = None if self._view is None else typed(self._view)
        if map_key is None or self.map_key is None:
            return self if view is None else replace(self, _view=view)
        return replace(self, _view=view, map_key=map_key(self.map_key))


class Span(NamedTuple):
    """How far a range of key groups, `start` to `stop` (exclusive), has been delivered: `epoch` comes next."""

    start: int
    stop: int
    epoch: int


class Place(NamedTuple):
    """Where a subscription continues. `history` stands for the history of the state that the epochs are of.

    None: no server has said it. `selection` stands for what was selected; None: all there is, of which any part may be
    continued from here.
    """

    spans: Sequence[Span]
    history: int | None = None
    selection: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """All selected changes of one epoch in a range of key groups; or, with `snapshot`, the state as of that epoch.

    A batch without changes is a progress mark. Up to epoch `complete`, the caller has the changes of all key groups.
    """

    epoch: int
    changes: Sequence[StateChange]
    snapshot: bool
    complete: int
    _place: Place | None

    @property
    def token(self) -> str | None:
        """Continue from here: `subscribe(..., token=...)` begins with what comes after this batch.

        None while a snapshot is not complete.
        """
        return None if self._place is None else token_of(self._place)

    def __iter__(self) -> Iterator[StateChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


def changes_of(run: Run, maker: ViewMaker) -> Iterable[StateChange]:
    """The changes of a run."""
    kind, epoch, namespace = _KINDS[run.operation], run.epoch, run.namespace
    nothing = (None,) * len(run.keys)
    views = nothing if run.values is None else maker.changed(run.values, epoch)
    map_keys = nothing if run.map_keys is None else run.map_keys
    for key, map_key, view in zip(run.keys, map_keys, views, strict=True):
        yield StateChange(epoch, kind, key, namespace, map_key, view)


def token_of(place: Place) -> str:
    """The place as text."""
    return base64.urlsafe_b64encode(msgpack.packb((1, *place))).decode()


def place_in(token: str) -> Place:
    """The inverse of `token_of`, also of tokens that lack the last parts. Raises `ConfigError` for any other text."""
    try:
        row = msgpack.unpackb(base64.urlsafe_b64decode(token.encode()))
        version, rows, history, selection = (*row, None, None)[:4]
        spans = tuple(Span(*row) for row in rows)
        at = 0
        for span in spans:
            if {*map(type, span)} != {int}:
                raise TypeError(span)
            if not (at <= span.start < span.stop <= MAX_PARALLELISM_LIMIT and 0 <= span.epoch <= MAX_INT64):
                raise ValueError(span)
            at = span.stop
        if version != 1 or not spans or not {type(history), type(selection)} <= {int, type(None)}:
            raise ValueError(token)
    except Exception:
        raise ConfigError(f"token must be the `token` of a batch of changes, got {token!r:.80}") from None
    return Place(spans, history, selection)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a subscription is about.

    `namespaces`: all if there are none. `keys`: all if None. `begin`: where to begin, None: with a snapshot. `parts`:
    only the key groups of `begin` are wanted, otherwise it must have all of them.
    `progress_s`: how long a poll waits. `patience_s`: how long there may be no answer; `timeout_s`: before the first.
    """

    job: str
    state: str
    namespaces: tuple[Namespace, ...]
    keys: tuple[Key, ...] | None
    prefix: Prefix
    begin: Place | None
    progress_s: float
    patience_s: float
    timeout_s: float
    parts: bool = False

    @property
    def selection(self) -> int | None:
        """See `Place`. The order of the keys makes no difference."""
        if self.keys is None and self.prefix is None and not self.namespaces:
            return None
        keys = None if self.keys is None else sorted(map(encode_key, self.keys))
        about = (keys, [encode_key(space) for space in self.namespaces], encode_key(self.prefix))
        return int.from_bytes(blake2b(msgpack.packb(about), digest_size=8).digest(), "big")

    @property
    def query(self) -> Query:
        """How the keys of the snapshot are read."""
        namespace = self.namespaces[0] if self.namespaces else None
        return Query(self.job, self.state, namespace, COMMITTED, {"isolation": COMMITTED, "wait_ms": SNAPSHOT_WAIT_MS})


class SnapshotScan:
    """The snapshot of a subscription that is about no particular keys: a committed scan, page by page.

    Each owner's pages are of one epoch. A key group is given when all of it is there, so that it is of one epoch, too,
    whatever happens to its owner meanwhile. `spans` say where the changes after the snapshot begin.
    """

    def __init__(self, wanted: Wanted, groups: int) -> None:
        options: dict[str, Detail] = {"isolation": COMMITTED, "max_bytes": DEFAULT_MAX_FRAME}
        target = (wanted.job, wanted.state)
        self.request = Scan(1, 0, target, wanted.namespaces, wanted.prefix, 0, groups, None, b"", options)
        self.spans: list[Span] = []
        self.over = False
        #: The changes of the last page.
        self.last: list[StateChange] = []
        self._groups = groups
        self._epoch: int | None = None
        self._begin = 0
        self._part: list[StateChange] = []

    @property
    def begun(self) -> bool:
        """Whether there was a page."""
        return self._epoch is not None

    def nothing(self) -> None:
        """Nothing was committed yet."""
        self.over, self.spans = True, [Span(0, self._groups, 0)]

    def forget_view(self) -> None:
        """The owner does not have the view of this scan any more."""
        self.request = self.request._replace(view=b"")

    def take(self, page: Page, maker: ViewMaker) -> list[StateChange]:
        """The changes of the key groups that are complete with this page. Raises the `QueryError` of a key's value."""
        request = self.request
        if self._epoch is not None and page.epoch != self._epoch:
            # Another owner, or the same one has begun again.
            if self._begin < request.start_group:
                self.spans.append(Span(self._begin, request.start_group, self._epoch + 1))
            self._begin, self._epoch = request.start_group, None
            if request.after is not None:
                self._part = []
                self.request = request._replace(after=None, view=b"")
                return []
        self._epoch = page.epoch
        found = [*self._part, *_changes_in(page, maker)]
        self.request = request._replace(start_group=page.next_group, after=page.after, view=page.view)
        self.over = page.next_group >= request.stop_group
        if page.after is None or self.over:
            complete, self._part = found, []
        else:
            unfinished = {id(one) for one in found if key_group(one.key, self._groups) == page.next_group}
            complete = [one for one in found if id(one) not in unfinished]
            self._part = [one for one in found if id(one) in unfinished]
        if self.over:
            self.spans.append(Span(self._begin, self._groups, self._epoch + 1))
            self.last = complete
        return complete


def _changes_in(page: Page, maker: ViewMaker) -> Iterator[StateChange]:
    spaces = page.namespaces or (None,) * len(page.keys)
    for namespace, key, result in zip(spaces, page.keys, page.results, strict=True):
        if isinstance(result, int):
            raise query_error(result, {"key": repr(key)})
        view = maker.view(result, page.epoch, COMMITTED)
        yield StateChange(page.epoch, ChangeKind.PUT, key, namespace, None, view)


def wanted_of(
    names: tuple[Any, Any],
    key: Key | None,
    keys: Iterable[Key] | None,
    namespace: Namespace | EllipsisType,
    *,
    prefix: Prefix,
    from_epoch: int | None,
    token: str | None,
    progress_s: float,
    patience_s: float,
    timeout_s: float,
) -> Wanted:
    """What a subscription is about. Raises `ConfigError`, and `WrongKeyType` for what no key can be."""
    check_names(*names)
    if key is not None and keys is not None:
        raise ConfigError("subscribe takes key=... or keys=[...], not both")
    wanted = (key,) if key is not None else None if keys is None else tuple(dict.fromkeys(keys_of(keys)))
    if wanted == ():
        raise ConfigError("keys must have at least one key; without keys, a subscription is about all of them")
    for one in wanted or ():
        check_key(one)
    if namespace is ... and wanted is not None:
        namespace = None
    namespaces = () if isinstance(namespace, EllipsisType) else (namespace,)
    for space in namespaces:
        if space is not None:
            check_key(space)
    Selected(prefix).check()
    if prefix is not None and wanted is not None:
        raise ConfigError("subscribe takes keys or a prefix, not both")
    begin = _begin(from_epoch, token)
    check_timeout(progress_s, "progress_s")
    if progress_s * 1000 > MAX_DEADLINE_MS:
        raise ConfigError(f"progress_s must be at most {MAX_DEADLINE_MS // 1000} seconds, got {progress_s!r}")
    check_timeout(patience_s, "patience_s")
    check_timeout(timeout_s)
    found = Wanted(*names, namespaces, wanted, prefix, begin, progress_s, patience_s, timeout_s)
    if begin is not None and begin.selection not in (None, found.selection):
        raise ConfigError(OF_OTHER_KEYS)
    return found


def _begin(from_epoch: int | None, token: str | None) -> Place | None:
    if token is not None:
        if from_epoch is not None:
            raise ConfigError("subscribe takes from_epoch=... or token=..., not both")
        if not isinstance(token, str):
            raise ConfigError(f"token must be the `token` of a batch of changes, got {token!r:.80}")
        return place_in(token)
    if from_epoch is None:
        return None
    if type(from_epoch) is not int or not 0 <= from_epoch <= MAX_INT64:
        raise ConfigError(f"from_epoch must be the number of an epoch, from 0, got {from_epoch!r}")
    return Place((Span(0, MAX_PARALLELISM_LIMIT, from_epoch),))
