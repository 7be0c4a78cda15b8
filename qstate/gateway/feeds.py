"""Feeds: one subscription to the query port for all readers that want the same.

Rules of this module: it decides which subscription a reader reads from; `events` says what it reads. A reader's
connection is not known here, and what is kept for readers is bounded, however slow they are.

    reader --> place known to the shared feed? --> read it from there
                    | no
                    v
               a feed of its own, until the shared one knows the reader's place: then that

A feed waits for the fastest of its readers, so that one that is alone is never too slow. A reader that is so far behind
another one that its next event is not kept any more is cut off, and comes back with its last place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from qstate.client import AsyncSubscription, ChangeBatch
from qstate.errors import InternalFailure, Overloaded, QStateError
from qstate.gateway.events import QUIET, SHUTDOWN, Event, error_event, events_of, waiting_event
from qstate.gateway.upstream import Upstream
from qstate.host.line_limit import limited
from qstate.keys import Column, Key, Namespace, key_identity

__all__ = ["Feeds", "Reader", "Selection"]

log = limited(logging.getLogger(__name__))

#: What one feed keeps, and all together, for readers that are behind or come back.
MOST_EVENTS = 512
MOST_BYTES, MOST_BYTES_OF_ALL = 8 << 20, 256 << 20
#: How many events a feed is ahead of its fastest reader at most; so many are kept whatever their size.
AHEAD = 4
#: A snapshot that so many events have followed is no beginning for others: they get a newer one.
MOST_AFTER_SNAPSHOT = 64
#: The most subscriptions to the query port.
MOST_FEEDS = 512
#: Without an event for so long, readers get a sign of life.
QUIET_S = 15.0
#: How often a feed without an event looks whether the job answers.
LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stream is about, and by whose right. `keys`: all if None. `namespaces`: all if there are none.

    Equal ones may share a feed. Namespaces may be of any type, so what tells them apart is compared, too.
    """

    token: bytes | None
    job: str
    state: str
    keys: tuple[Key, ...] | None
    prefix: str | bytes | tuple[Column, ...] | None
    namespaces: tuple[Namespace, ...]
    spaces: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spaces", tuple(map(key_identity, self.namespaces)))


class _Feed:
    """The events of one subscription. They have numbers, from 0. `begin` is the place before the first."""

    def __init__(self, begin: str | None, most_bytes: Callable[[], int]) -> None:
        self.readers = 0
        self.task: asyncio.Task[None] | None = None
        self._most_bytes = most_bytes
        self._events: deque[Event] = deque()
        self._oldest = 0
        self._bytes = 0
        #: The number of the event after each place.
        self._numbers: dict[str | None, int] = {begin: 0}
        #: The places by those numbers, ascending.
        self._places: deque[tuple[int, str | None]] = deque([(0, begin)])
        #: The number of the newest event that a reader has asked for.
        self._asked = 0
        self._added = asyncio.Event()
        self._wanted = asyncio.Event()

    def find(self, place: str | None) -> int | None:
        """The number of the event after a place, None if this feed does not know it."""
        if place is None and self._oldest + len(self._events) > MOST_AFTER_SNAPSHOT:
            return None
        return self._numbers.get(place)

    @property
    def over(self) -> bool:
        """Whether its last event is there."""
        return bool(self._events) and self._events[-1].last

    async def event(self, number: int) -> Event:
        """The event of this number, when it is there. Raises `Overloaded` if it is not kept any more."""
        if number > self._asked:
            self._asked = number
            self._wanted.set()
        while number >= self._oldest + len(self._events):
            added = self._added
            await added.wait()
        if number < self._oldest:
            raise Overloaded(reason="this reader is too slow: come back with the id of its last event")
        return self._events[number - self._oldest]

    async def room(self) -> None:
        """Wait until the fastest reader is near the newest event."""
        while self._oldest + len(self._events) - self._asked >= AHEAD:
            self._wanted.clear()
            await self._wanted.wait()

    def add(self, event: Event) -> None:
        """Add an event, and forget the oldest ones if there is too much."""
        self._events.append(event)
        self._bytes += len(event.sse)
        if event.place is not None:
            number = self._oldest + len(self._events)
            self._numbers[event.place] = number
            self._places.append((number, event.place))
        most = self._most_bytes()
        while len(self._events) > MOST_EVENTS or (self._bytes > most and len(self._events) > AHEAD):
            self._forget()
        added, self._added = self._added, asyncio.Event()
        added.set()

    def _forget(self) -> None:
        self._bytes -= len(self._events.popleft().sse)
        self._oldest += 1
        while self._places and self._places[0][0] < self._oldest:
            number, place = self._places.popleft()
            if self._numbers.get(place) == number:
                del self._numbers[place]


class Feeds:
    """All feeds of a gateway. Use it in one event loop; close it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._shared: dict[Selection, _Feed] = {}
        self._all: set[_Feed] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def reader(self, selection: Selection, begin: str | None) -> Reader:
        """A reader from a place on, or from a snapshot on. Raises `Overloaded` when there are too many feeds."""
        return Reader(self, selection, begin)

    def join(self, selection: Selection, place: str | None) -> tuple[_Feed, int]:
        """A feed that knows the place, and the number of the event after it. `leave` it."""
        feed = self._shared.get(selection)
        number = None if feed is None or feed.over else feed.find(place)
        if feed is None or number is None:
            feed, number = self._start(selection, place), 0
        feed.readers += 1
        return feed, number

    def shared(self, selection: Selection, feed: _Feed, place: str) -> tuple[_Feed, int] | None:
        """The shared feed for a reader of another one, if it knows the reader's place. Leave the other one then."""
        shared = self._shared.setdefault(selection, feed)
        if shared is feed:
            return None
        if shared.over:
            self._shared[selection] = feed
            return None
        number = shared.find(place)
        if number is None:
            return None
        shared.readers += 1
        return shared, number

    def leave(self, selection: Selection, feed: _Feed) -> None:
        """A reader needs the feed no longer."""
        feed.readers -= 1
        if not feed.readers:
            self._all.discard(feed)
            if self._shared.get(selection) is feed:
                del self._shared[selection]
            if feed.task is not None:
                feed.task.cancel()

    def _start(self, selection: Selection, place: str | None) -> _Feed:
        if self._closed or len(self._all) >= MOST_FEEDS:
            raise Overloaded(reason="too many subscriptions")
        feed = _Feed(place, lambda: min(MOST_BYTES, MOST_BYTES_OF_ALL // max(1, len(self._all))))
        self._all.add(feed)
        self._shared.setdefault(selection, feed)
        if self._shared[selection].over:
            self._shared[selection] = feed
        feed.task = asyncio.get_running_loop().create_task(self._run(feed, selection, place))
        return feed

    async def _run(self, feed: _Feed, selection: Selection, place: str | None) -> None:
        options: dict[str, Any] = {"keys": selection.keys, "prefix": selection.prefix, "token": place}
        if selection.namespaces:
            options["namespace"] = selection.namespaces[0]
        try:
            async with (
                self._upstream.caller(selection.token) as caller,
                caller.client.subscribe(selection.job, selection.state, **options) as subscription,
            ):
                async for event in _events(subscription):
                    await feed.room()
                    feed.add(event)
        except QStateError as exc:
            feed.add(error_event(exc))
        except Exception:
            log.exception("a stream of the changes of %s of job %s failed", selection.state, selection.job)
            feed.add(error_event(InternalFailure()))

    async def close(self) -> None:
        """End every stream. Idempotent."""
        self._closed = True
        tasks = [feed.task for feed in self._all if feed.task is not None]
        for feed in self._all:
            feed.add(SHUTDOWN)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _events(subscription: AsyncSubscription) -> AsyncIterator[Event]:
    """The events of a subscription, also of one whose job does not answer or has nothing new."""
    last: ChangeBatch | None = None
    waits, quiet_s = False, 0.0
    while True:
        batch = await subscription.next_batch(LOOK_S)
        quiet_s += LOOK_S
        if batch is None and waits and subscription.failure is None:
            waits = False
            if last is not None and last.token is not None:
                batch = replace(last, changes=(), snapshot=False)  # the job is back, and nothing has changed
        if batch is not None:
            last, quiet_s = batch, 0.0
            waits = waits and subscription.failure is not None
            for event in events_of(batch):
                yield event
        elif subscription.failure is not None and not waits:
            waits = True
            yield waiting_event(subscription.failure)
        elif quiet_s >= QUIET_S:
            quiet_s = 0.0
            yield QUIET


class Reader:
    """One stream's place in a feed. Leave it."""

    def __init__(self, feeds: Feeds, selection: Selection, begin: str | None) -> None:
        self._feeds = feeds
        self._selection = selection
        self._feed, self._number = feeds.join(selection, begin)
        self._left = False

    async def next(self) -> Event:
        """The next event; a task that is cancelled while it waits loses none. Raises `Overloaded` if it is gone."""
        event = await self._feed.event(self._number)
        self._number += 1
        if event.place is not None:
            other = self._feeds.shared(self._selection, self._feed, event.place)
            if other is not None:
                self._feeds.leave(self._selection, self._feed)
                self._feed, self._number = other
        return event

    def leave(self) -> None:
        """Read nothing more. Idempotent."""
        if not self._left:
            self._left = True
            self._feeds.leave(self._selection, self._feed)
