"""Pages: what a state server answers to a Scan.

Rules of this module: it knows the messages Scan and Page, state instances and the backend contract. It must not know
sockets or threads. It reads no more than one page's bytes and one value at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Raw

from qstate.backends.answers import container_header
from qstate.backends.contract import Scanned, Selection, StateScan
from qstate.descriptors import StateKind
from qstate.errors import (
    ClosedError,
    FailureCode,
    KeyGroupNotOwned,
    TooLarge,
    UnknownStateId,
    UnsupportedOperation,
    UnsupportedQuery,
    WrongKeyType,
)
from qstate.keys import ColumnType, check_key, encode_key
from qstate.protocol.messages import Page, Poll, Scan
from qstate.runtime.serving.demands import check_committed, check_epoch, reader_of
from qstate.runtime.serving.range_requests.scan_views import IDLE_S, LAST_PAGE_S, ScanViews, View
from qstate.runtime.serving.registry import StateInstance

__all__ = ["PAGE_BYTES", "begins_with", "encoded_prefix", "page_of"]

#: A page ends with the key that reaches one of these.
PAGE_BYTES = 256 * 1024
PAGE_S = 0.01
#: What a page has beside its keys and values: numbers, a fingerprint, a view and the headers of arrays.
_FRAME_BYTES = 512
#: The most bytes of the MessagePack header of a value.
_HEADER_BYTES = 5
_VOID = b"\xc0"


def page_of(request: Scan, instance: StateInstance, views: ScanViews, most_bytes: int) -> Iterator[Page | None]:
    """The answer to a Scan of this instance, in steps: the first page of a scan may take long to prepare.

    Raises the `QueryError` that the request fails with: `KeyGroupNotOwned`, `WrongKeyType`, `UnsupportedQuery`,
    `ScanExpired`, `Overloaded`, `TooLarge` for a key that no page can have, and what a get fails with.
    """
    if request.start_group < instance.max_parallelism and request.start_group not in instance.key_groups:
        raise KeyGroupNotOwned(group=request.start_group)
    reader = _PageReader(request, instance, most_bytes)
    if request.limit == 0:
        views.drop(request.view)
        yield reader.page(-1, b"")
        return
    view = _view_of(request, instance, views)
    keep_s = 0.0
    try:
        epoch = view.scan.epoch
        if request.options:
            check_epoch(epoch, request.options)
        yield from view.scan.prepare()
        reader.read(view.scan, min(request.stop_group, instance.key_groups.stop))
        goes_on = reader.goes_on
        # The client may not get the last page of several, and ask for it again.
        keep_s = IDLE_S if goes_on else LAST_PAGE_S if request.view else 0.0
        page = reader.page(epoch, view.id if goes_on else b"")
    except ClosedError as exc:  # the backend is closed as soon as its state is not served any more
        raise UnknownStateId(state=instance.name) from exc
    finally:
        views.release(view, keep_s)
    yield page


def _view_of(request: Scan, instance: StateInstance, views: ScanViews) -> View:
    """The view of the request, or a new one: a view of another owner cannot be found again."""
    isolation = str(request.options.get("isolation", "live"))
    if views.has_made(request.view):
        return views.use(request.view, isolation)
    reader = reader_of(instance, request.options)
    try:
        view = views.open(isolation, lambda: reader.scan(instance.descriptor))
    except ClosedError as exc:
        raise UnknownStateId(state=instance.name) from exc
    except UnsupportedOperation as exc:
        raise UnsupportedQuery(reason="the state's backend does not declare scans") from exc
    try:
        if isolation == "committed":
            check_committed(view.scan.epoch, instance)
    except BaseException:
        views.release(view, 0.0)
        raise
    return view


class _PageReader:
    """Collects the keys of one page."""

    def __init__(self, request: Scan, instance: StateInstance, most_bytes: int) -> None:
        types = instance.key_types
        after = request.after
        if after is not None:
            check_key(after[1], types)
        for namespace in (*request.namespaces, *(() if after is None else after[:1])):
            if namespace is not None:
                check_key(namespace, instance.namespace_types)
        self._request = request
        self._max_parallelism = instance.max_parallelism
        self._fingerprint = instance.fingerprint
        self._begins = begins_with(request, types)
        self._shown = request.options.get("show", "values")
        self._selection = Selection(
            encode_key(request.namespaces[0]) if request.namespaces else None,
            encoded_prefix(request, types),
            self._shown == "values",
            most_bytes,
        )
        self._most_bytes = most_bytes
        self._group = self._stop = request.start_group
        self._after = None if after is None else (encode_key(after[0]), encode_key(after[1]))
        self._until = time.monotonic() + PAGE_S
        self._size = _FRAME_BYTES
        self._selected = 0
        self._found: list[Scanned] = []

    @property
    def goes_on(self) -> bool:
        """Whether this owner has another page."""
        return self._group < min(self._stop, self._request.stop_group) and self._selected != self._request.limit

    def read(self, scan: StateScan, stop: int) -> None:
        """Read on until the page is full, or up to the key group `stop`."""
        self._stop = stop
        while self._group < stop:
            if not self._read_group(scan):
                return
            self._group, self._after = self._group + 1, None
            if self._is_full():
                break
        if self._group == self._max_parallelism:
            self._group = self._request.stop_group  # there are no keys in groups after the last one

    def page(self, epoch: int, view: bytes) -> Page:
        found = self._found
        spaces = [entry.namespace for entry in found]
        return Page(
            self._request.id,
            epoch,
            self._fingerprint,
            view,
            self._group,
            None if self._after is None else tuple(map(Raw, self._after)),  # type: ignore[arg-type]
            self._selected,
            _raw(spaces) if spaces.count(_VOID) != len(spaces) else (),
            _raw([entry.key for entry in found]),
            tuple(entry.value for entry in found) if self._shown == "values" else (),  # type: ignore[misc]
        )

    def _read_group(self, scan: StateScan) -> bool:
        """Read keys of the group. Returns whether there are no more."""
        for entry in scan.entries(self._group, self._after, self._selection):
            if self._begins is None or self._begins(entry.key):
                if self._shown != "count" and not self._take(entry):
                    return False
                self._selected += 1
            self._after = (entry.namespace, entry.key)
            if self._is_full():
                return False
        return True

    def _is_full(self) -> bool:
        return self._size >= PAGE_BYTES or self._selected == self._request.limit or time.monotonic() >= self._until

    def _take(self, entry: Scanned) -> bool:
        """Add a key unless it belongs on the next page: this one must fit a frame, with the place of its last key."""
        place = len(entry.namespace) + len(entry.key)
        value = entry.value
        size = place + _HEADER_BYTES + (len(value) if isinstance(value, bytes) else 0)
        if self._size + size + place > self._most_bytes:
            if self._found:
                return False
            if self._size + _HEADER_BYTES + 2 * place > self._most_bytes:
                raise TooLarge(field="keys", limit=self._most_bytes)
            entry, size = entry._replace(value=FailureCode.TOO_LARGE), place + _HEADER_BYTES
        self._found.append(entry)
        self._size += size
        return True


def _raw(encoded: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(map(Raw, encoded))


def encoded_prefix(request: Scan | Poll, types: Sequence[ColumnType]) -> bytes:
    """What the encoded keys begin with. Raises `WrongKeyType` when the columns are not the first ones of the keys."""
    prefix = request.prefix
    if not isinstance(prefix, tuple):
        return b""
    if len(prefix) > len(types):
        raise WrongKeyType(field="prefix", expected=f"at most {len(types)} columns")
    for column, kind in zip(prefix, types, strict=False):
        check_key(column, (kind,))
    columns = b"".join(map(encode_key, prefix))
    return _array_header(types) + columns


def _array_header(types: Sequence[ColumnType]) -> bytes:
    """How an encoded key of several columns begins; nothing for one column."""
    return container_header(StateKind.LIST, len(types)) if len(types) > 1 else b""


def begins_with(request: Scan | Poll, types: Sequence[ColumnType]) -> Callable[[bytes], bool] | None:
    """The test of an encoded key for the text or bytes that its first column begins with; None without such a prefix.

    Raises `WrongKeyType` when the first column is of another type.
    """
    prefix = request.prefix
    if not isinstance(prefix, str | bytes):
        return None
    check_key(prefix, types[:1])
    start = len(_array_header(types))
    data = prefix.encode() if isinstance(prefix, str) else prefix

    def begins(key: bytes) -> bool:
        return key.startswith(data, start + _HEADER_OF[key[start]])

    return begins


#: By the first byte of a text or bytes: how long its MessagePack header is.
_HEADER_OF = {
    **dict.fromkeys(range(0xA0, 0xC0), 1),
    **dict.fromkeys((0xC4, 0xD9), 2),
    **dict.fromkeys((0xC5, 0xDA), 3),
    **dict.fromkeys((0xC6, 0xDB), 5),
}
