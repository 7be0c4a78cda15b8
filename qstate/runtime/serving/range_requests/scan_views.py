"""The open scans of a state instance.

Rules of this module: it knows who uses a scan of the backend and how long it stays open. It must not know messages.

A view is a scan of the backend that stays open between two pages, so that all pages are of one epoch. It is found by an
id, which begins with the state id: a server knows its own views from those of an owner before. A view that no request
uses for a while is closed, and so are all of them when the instance is not served any more.

A client may vanish in the middle of a scan, or come back just before its view would be closed. So there are bounds: on
the views, and on the epochs that they are of, because a backend may keep as much as all keys of the state for each of
these. A scan that is one too many takes the place of the one that was not read for longest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from threading import Lock

from qstate.backends.contract import Isolation, StateScan
from qstate.errors import Overloaded, ScanExpired

__all__ = ["IDLE_S", "LAST_PAGE_S", "LEAST_S", "MOST_EPOCHS", "MOST_VIEWS", "ScanViews", "View"]

#: Views of one state instance, and epochs of its committed views. A further one is refused while no place is free.
MOST_VIEWS = 64
MOST_EPOCHS = 8
#: How long a view waits for the next page; after its last page, for that one to be asked for again.
IDLE_S = 60.0
LAST_PAGE_S = 5.0
#: How long a view keeps its place, between two pages, when others want it.
LEAST_S = 10.0
RETRY_AFTER_MS = 1000
_VIEW_BYTES = 8


@dataclass(slots=True, eq=False)
class View:
    """A scan of the backend that is open. `ScanViews` counts who uses it."""

    id: bytes
    isolation: str
    scan: StateScan
    users: int = 1
    #: When it is closed, and from when on its place may be taken, unless a request uses it.
    expires_at: float = 0.0
    free_at: float = 0.0


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
        with self._lock:
            views = list(self._views.values())
        if len(views) >= MOST_VIEWS and not self._close_rested([[view] for view in views]):
            raise Overloaded(reason="too many scans of the state are open", retry_after_ms=RETRY_AFTER_MS)
        scan = scan_of()
        if isolation == Isolation.COMMITTED.value and not self._has_room_for(scan.epoch, views):
            scan.close()
            raise Overloaded(reason="scans of too many epochs are open", retry_after_ms=RETRY_AFTER_MS)
        view = View(self._state_id + token_bytes(_VIEW_BYTES), isolation, scan)
        with self._lock:
            self._views[view.id] = view
        return view

    def _has_room_for(self, epoch: int, views: Sequence[View]) -> bool:
        """Whether a committed view of this epoch can be added, if need be in the place of those of another epoch."""
        of_epochs: dict[int, list[View]] = {}
        for view in views:
            if view.isolation == Isolation.COMMITTED.value:
                of_epochs.setdefault(view.scan.epoch, []).append(view)
        return epoch in of_epochs or len(of_epochs) < MOST_EPOCHS or self._close_rested(list(of_epochs.values()))

    def _close_rested(self, groups: Sequence[Sequence[View]]) -> bool:
        """Close the group of views that was not read for longest, if that is long enough. Returns whether it is."""
        now = self._clock()
        rested = [group for group in groups if all(not view.users and view.free_at <= now for view in group)]
        if not rested:
            return False
        for view in min(rested, key=lambda group: max(view.free_at for view in group)):
            self.drop(view.id)
        return True

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
            now = self._clock()
            view.expires_at = now + keep_s
            # After its last page, a client hardly ever comes back.
            view.free_at = now + LEAST_S if keep_s >= LEAST_S else now
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
