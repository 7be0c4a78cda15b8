"""The open scans of a state instance.

Rules of this module: it knows who uses a scan of the backend and how long it stays open. It must not know messages.

A view is a scan of the backend that stays open between two pages, so that all pages are of one epoch. It is found by an
id, which begins with the state id: a server knows its own views from those of an owner before. A view that no request
uses for a while is closed, and so are all of them when the instance is not served any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_bytes
from threading import Lock

from qstate.backends.contract import StateScan
from qstate.errors import Overloaded, ScanExpired

__all__ = ["IDLE_S", "LAST_PAGE_S", "ScanViews", "View"]

#: Views of one state instance. A further one is refused until another has ended or expired.
MOST_VIEWS = 64
#: How long a view waits for the next page; after its last page, for that one to be asked for again.
IDLE_S = 60.0
LAST_PAGE_S = 5.0
RETRY_AFTER_MS = 1000
_VIEW_BYTES = 8


class View:
    """A scan of the backend that is open. `ScanViews` counts who uses it."""

    __slots__ = ("expires_at", "id", "isolation", "scan", "users")

    def __init__(self, view_id: bytes, isolation: str, scan: StateScan) -> None:
        self.id = view_id
        self.isolation = isolation
        self.scan = scan
        self.users = 1
        self.expires_at = 0.0


class ScanViews:
    """The open views of one registered state instance. Any thread may call any method."""

    def __init__(self, state_id: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._state_id = state_id
        self._clock = clock
        self._lock = Lock()
        self._views: dict[bytes, View] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._views)

    def has_made(self, view_id: bytes) -> bool:
        """Whether this is the id of a view of this instance, open or not."""
        return view_id.startswith(self._state_id)

    def open(self, isolation: str, scan_of: Callable[[], StateScan]) -> View:
        """A new view, in use. Raises `Overloaded` when there are too many, and what `scan_of` raises."""
        self.expire()
        if len(self._views) >= MOST_VIEWS:
            raise Overloaded(reason="too many scans of the state are open", retry_after_ms=RETRY_AFTER_MS)
        view = View(self._state_id + token_bytes(_VIEW_BYTES), isolation, scan_of())
        with self._lock:
            self._views[view.id] = view
        return view

    def use(self, view_id: bytes, isolation: str) -> View:
        """An open view, in use. Raises `ScanExpired`."""
        with self._lock:
            view = self._views.get(view_id)
            if view is None or view.isolation != isolation:
                raise ScanExpired(idle_s=IDLE_S)
            view.users += 1
            return view

    def release(self, view: View, keep_s: float) -> None:
        """A request has used the view. It is kept for so long; 0: not at all."""
        with self._lock:
            view.users -= 1
            view.expires_at = self._clock() + keep_s
            if keep_s <= 0 or self._closed:
                self._views.pop(view.id, None)
            unused = not view.users and view.id not in self._views
        if unused:
            view.scan.close()

    def drop(self, view_id: bytes) -> None:
        """The client needs a view no longer. Unknown ones are ignored."""
        with self._lock:
            view = self._views.pop(view_id, None)
            unused = view is not None and not view.users
        if view is not None and unused:
            view.scan.close()

    def expire(self) -> None:
        """Close the views that no request has used for too long."""
        now = self._clock()
        for view_id, view in list(self._views.items()):
            if not view.users and view.expires_at <= now:
                self.drop(view_id)

    def close(self) -> None:
        """Close all views, those in use when they are released. Idempotent."""
        self._closed = True
        for view_id in list(self._views):
            self.drop(view_id)
