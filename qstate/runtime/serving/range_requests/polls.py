"""The polls of a state server: answered at once, or kept until an epoch is committed or their time is over.

Rules of this module: one thread does everything here, so nothing is locked. It is not a query thread: to read an epoch
may take long, and gets must not wait for it. Others only put things into its queue: a poll, or a feed whose newest
committed epoch has changed. A poll that waits holds no thread. `polled_changes` decides what is in an answer.

A poll whose epochs have no change that it selects goes on waiting, from the epoch after them: a subscriber of one key
costs an epoch one look-up, and no answer.

A client that does not read its answers gets no more, so its polls wait here, as requests and not as answers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from xxhash import xxh64_intdigest

from qstate.checkpoint.sources.change_feed import ChangeFeed
from qstate.errors import (
    CheckpointError,
    Detail,
    FailureCode,
    KeyGroupNotOwned,
    QueryCancelled,
    QueryError,
    ShuttingDown,
    UnknownStateId,
    UnsupportedQuery,
)
from qstate.host.line_limit import limited
from qstate.keys import check_key
from qstate.protocol.messages import Changes, Poll
from qstate.protocol.range_messages import HISTORY, OWNER, STALENESS
from qstate.protocol.rules import NO_ATTRIBUTES
from qstate.runtime.serving.client_connection import Call
from qstate.runtime.serving.range_requests.polled_changes import (
    ENOUGH_BYTES,
    Place,
    Selection,
    place_of,
    polled,
)
from qstate.runtime.serving.registry import StateInstance, StateRegistry

__all__ = ["Polls"]

log = limited(logging.getLogger(__name__))

STOP_TIMEOUT_S = 5.0
#: How often to look whether a client that has not read its answers has done so.
ROOM_S = 0.02


@dataclass(slots=True, eq=False)
class _Poll:
    """A poll that has no answer yet: its call, the id of its state, where it continues, and until when it may wait."""

    call: Call
    request: Poll
    state_id: bytes
    until: float
    place: Place
    selection: Selection | None = None


class Polls:
    """Answers polls from the feeds of a registry's states."""

    def __init__(self, registry: StateRegistry) -> None:
        self._registry = registry
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        #: Those that wait for an epoch, by their calls.
        self._waiting: dict[ChangeFeed, dict[Call, _Poll]] = {}
        #: Polls whose clients have not read enough of their answers, in their order.
        self._blocked: list[_Poll] = []
        #: When the first of the waiting polls may have waited long enough, or a blocked one may have room.
        self._check_at = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="qstate-polls", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def take(self, call: Call, state_id: bytes) -> None:
        """Answer a poll of this state, sooner or later. Any thread."""
        call.on_cancel = partial(self._queue.put, partial(self._cancel, call))
        self._queue.put(partial(self._begin, call, state_id))

    def stop(self) -> None:
        """Answer SHUTTING_DOWN to every poll, and end the thread. Idempotent."""
        self._queue.put(self._close)
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            left = self._check_at - time.monotonic()
            try:
                step = self._queue.get(timeout=None if math.isinf(left) else max(0.0, left))
            except Empty:
                step = self._expire
            if step is None:
                return
            try:
                step()
            except Exception:
                log.exception("a step of the polls failed")

    def _begin(self, call: Call, state_id: bytes) -> None:
        request = call.request
        assert isinstance(request, Poll)
        until = min(call.deadline, call.received_at + request.wait_ms / 1000)
        try:
            poll = _Poll(call, request, state_id, until, place_of(request))
        except QueryError as error:
            call.fail(error.code, **error.details)
        else:
            self._continue(poll)

    def _continue(self, poll: _Poll) -> None:
        began = time.thread_time()
        try:
            answer = self._answer(poll)
        except QueryError as error:
            poll.call.fail(error.code, **error.details)
        except CheckpointError as error:
            log.warning("changes cannot be read: %s", error)
            poll.call.fail(FailureCode.INTERNAL)
        except Exception:
            log.exception("a poll failed and is answered INTERNAL")
            poll.call.fail(FailureCode.INTERNAL)
        else:
            if answer is not None:
                poll.call.answer(answer)
        poll.call.connection.charge(time.thread_time() - began)

    def _answer(self, poll: _Poll) -> Changes | None:
        instance, request = self._instance(poll), poll.request
        source = instance.changes
        assert source is not None
        stop = min(request.stop_group, instance.key_groups.stop)
        selection = poll.selection = poll.selection or Selection(request, instance.key_types)
        if not poll.call.connection.has_room(ENOUGH_BYTES):
            self._blocked.append(poll)
            self._check_at = min(self._check_at, time.monotonic() + ROOM_S)
            return None
        while True:
            since = instance.behind_since()  # before the reading, which shows this much or more
            final = source.feed.final
            found = polled(source, selection, poll.place, stop, min(poll.call.most_bytes, request.max_bytes))
            poll.place = Place(found.next_epoch, request.start_group)
            if found.runs or found.position or time.monotonic() >= poll.until or poll.call.connection.over:
                answer = Changes(
                    request.id, instance.fingerprint, stop, found.next_epoch, found.position, final, found.runs
                )
                return answer._replace(attributes={**_marks(poll.state_id, source.feed), **_staleness(since)})
            if found.more:  # the others first
                self._queue.put(partial(self._continue, poll))
                return None
            if self._wait(poll, source.feed, final):
                return None

    def _instance(self, poll: _Poll) -> StateInstance:
        """The state of a poll. Raises the `QueryError` of a poll that it cannot answer."""
        if self._closed:
            raise ShuttingDown()
        if poll.call.cancelled:
            raise QueryCancelled()
        request, instance = poll.request, self._registry.lookup(poll.state_id)
        if instance is None:
            raise UnknownStateId(state_id=poll.state_id.hex())
        for key in request.keys:
            check_key(key, instance.key_types)
        for namespace in request.namespaces:
            if namespace is not None:
                check_key(namespace, instance.namespace_types)
        if request.start_group not in instance.key_groups:
            raise KeyGroupNotOwned()
        if instance.changes is None:
            raise UnsupportedQuery(request="poll", reason="the changes of this state cannot be read here")
        return instance

    def _wait(self, poll: _Poll, feed: ChangeFeed, final: int) -> bool:
        """Let a poll wait for another epoch than `final`. False: there is one."""
        polls = self._waiting.get(feed)
        if polls is None:
            if not feed.once(final, partial(self._queue.put, partial(self._wake, feed))):
                if feed.closed:
                    raise UnknownStateId(state_id=poll.state_id.hex())
                return False
            polls = self._waiting[feed] = {}
        polls[poll.call] = poll
        self._check_at = min(self._check_at, poll.until)
        return True

    def _wake(self, feed: ChangeFeed) -> None:
        for poll in self._waiting.pop(feed, {}).values():
            self._continue(poll)

    def _cancel(self, call: Call) -> None:
        for polls in self._waiting.values():
            poll = polls.pop(call, None)
            if poll is not None:
                self._continue(poll)
                return

    def _expire(self) -> None:
        """Answer the polls whose time is over."""
        now, self._check_at = time.monotonic(), math.inf
        blocked, self._blocked = self._blocked, []
        for poll in blocked:
            if now >= poll.call.deadline or poll.call.connection.over:
                poll.call.fail(FailureCode.DEADLINE_EXCEEDED)
            else:
                self._continue(poll)
        for feed, polls in list(self._waiting.items()):
            left = self._waiting[feed] = {call: poll for call, poll in polls.items() if now < poll.until}
            self._check_at = min([self._check_at, *(poll.until for poll in left.values())])
            for call, poll in polls.items():
                if call not in left:
                    self._continue(poll)

    def _close(self) -> None:
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        blocked, self._blocked = self._blocked, []
        for poll in (*(one for polls in waiting.values() for one in polls.values()), *blocked):
            self._continue(poll)


def _marks(state_id: bytes, feed: ChangeFeed) -> Mapping[str, Detail]:
    """The numbers of the owner and of the history that an answer is of."""
    return {OWNER: int.from_bytes(state_id[:7], "big"), HISTORY: xxh64_intdigest(feed.history.encode()) >> 1}


def _staleness(since: float | None) -> Mapping[str, Detail]:
    """What changes say of the commits that the node may lack: see `StateInstance.behind_since`."""
    if since is None:
        return NO_ATTRIBUTES
    return {STALENESS: None if math.isinf(since) else math.ceil(max(0.0, time.monotonic() - since) * 1000)}
