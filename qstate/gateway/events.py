"""The events of a stream: batches of changes as JSON, in parts of bounded size.

Rules of this module: values in, bytes out. Only the last part of a batch has the place after it, from which a stream
can be resumed: a reader that has seen some parts only gets the batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import json

from qstate.client import ChangeBatch, ChangeKind, StateChange
from qstate.errors import QStateError
from qstate.gateway.problems import problem_of
from qstate.gateway.value_json import value_json
from qstate.values.text_forms import key_form, map_key_form, namespace_form

__all__ = ["QUIET", "RETRY", "SHUTDOWN", "Event", "error_event", "events_of", "waiting_event"]

PART_CHANGES, PART_BYTES = 1000, 256 << 10
#: When a browser is to connect again.
RETRY_MS = 2000
#: The first line of a stream of server-sent events.
RETRY = b"retry: %d\n\n" % RETRY_MS

_VALUELESS = (ChangeKind.DELETE, ChangeKind.REMOVE_ENTRY)


@dataclass(slots=True, eq=False)
class Event:
    """What readers get, as a server-sent event and as a message of a WebSocket (empty: none).

    `place` is the token of the place after it, None if the stream cannot be resumed there. After a `last` one the
    stream ends, with an `error` if it has failed.
    """

    sse: bytes
    message: str = ""
    place: str | None = None
    last: bool = field(default=False, kw_only=True)
    error: Exception | None = field(default=None, kw_only=True)


#: A sign of life. WebSockets have their own.
QUIET = Event(b":\n\n")
#: The gateway shuts down; another one may be there soon.
SHUTDOWN = Event(RETRY, last=True)


def _event(name: str, place: str | None, data: bytes, *, last: bool = False) -> Event:
    mark = b"" if place is None else b"id: %b\n" % place.encode()
    sse = b"event: %b\n%bdata: %b\n\n" % (name.encode(), mark, data)
    message = b'{"event":"%b","id":%b,"data":%b}' % (name.encode(), json.encode(place), data)
    return Event(sse, message.decode(), place, last=last)


def error_event(error: Exception) -> Event:
    """The last event of a stream that has failed."""
    event = _event("error", None, json.encode(problem_of(error)), last=True)
    event.error = error
    return event


def waiting_event(error: Exception) -> Event:
    """The job does not answer, for this reason; the stream goes on when it does."""
    return _event("waiting", None, json.encode(problem_of(error)))


def events_of(batch: ChangeBatch) -> Iterator[Event]:
    """The events of a batch."""
    name = "snapshot" if batch.snapshot else "changes" if batch.changes else "progress"
    head = b'"epoch":%d,"complete":%d' % (batch.epoch, batch.complete)
    if name == "progress":
        yield _event(name, batch.token, b"{%b}" % head)
        return
    part: list[bytes] = []
    size = 0
    for change in batch:
        if len(part) >= PART_CHANGES or size > PART_BYTES:
            yield _event(name, None, _data(head, part))
            part, size = [], 0
        part.append(json.encode(_form(change)))
        size += len(part[-1])
    yield _event(name, batch.token, _data(head, part))


def _data(head: bytes, changes: list[bytes]) -> bytes:
    return b'{%b,"changes":[%b]}' % (head, b",".join(changes))


def _form(change: StateChange) -> dict[str, Any]:
    form: dict[str, Any] = {"change": change.kind.value, "key": key_form(change.key)}
    form["namespace"] = namespace_form(change.namespace)
    if change.map_key is not None:
        form["map_key"] = map_key_form(change.map_key)
    if change.kind in _VALUELESS:
        return form
    try:
        return form | {"value": value_json(lambda: change.value)}
    except QStateError as exc:
        return form | {"error": problem_of(exc)}
