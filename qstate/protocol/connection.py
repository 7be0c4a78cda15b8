"""Connections without I/O: bytes in, events out; messages in, bytes out.

Rules of this module: it knows which message is allowed when, and which answer belongs to which request. It opens no
socket, starts no thread and reads no clock. The code around it writes every bytes object that a method returns, and
closes the socket after a close notice or a `BrokenConnection`.

    state       client may send              server may send                       then
    HANDSHAKE   Hello                        Welcome                               OPEN
                                             Failure(0)                            CLOSED
    OPEN        Get, GetPart, Scan, Poll,    Values, Part, Page, Changes,          OPEN
                Locate, Describe, Ping,      Location, Description, Pong,
                Cancel                       Failure(id)
                                             Failure(0)                            CLOSED
    CLOSED      nothing                      nothing; further input is ignored     CLOSED

Threads: only one thread at a time may call `receive`. Others may call `send` and `next_id` meanwhile (each operation
on a shared container is atomic). Each send must reach the socket whole; their order does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias

from qstate.errors import Detail, FailureCode, LocalProtocolError, ProtocolError, RemoteProtocolError
from qstate.keys import Key, Namespace, encode_key
from qstate.protocol.codec import BadContent, FrameReader, decode, encode, frame
from qstate.protocol.limits import (
    DEFAULT_MAX_FRAME,
    DEFAULT_MAX_KEYS,
    HANDSHAKE_MAX_FRAME,
    MAX_ID,
    PROTOCOL_VERSIONS,
    Limits,
)
from qstate.protocol.messages import (
    AFTER,
    MORE,
    Cancel,
    Changes,
    Describe,
    Description,
    Failure,
    Get,
    GetPart,
    Hello,
    Locate,
    Location,
    Message,
    Page,
    Part,
    Ping,
    Poll,
    Pong,
    Scan,
    Values,
    Welcome,
)
from qstate.protocol.part_messages import BYTES, PAGE

__all__ = [
    "CANCEL",
    "ON_BEHALF_OF",
    "PARTS",
    "Answer",
    "BadRequest",
    "BrokenConnection",
    "ClientConnection",
    "ClientEvent",
    "ConnectionState",
    "Opened",
    "Request",
    "Served",
    "ServerConnection",
    "ServerEvent",
]

#: How many first bytes of a stream a guess at a foreign protocol needs. Only messages of errors have the guess.
OPENING_BYTES = 16
_FOREIGN = {b"HTTP": "HTTP", b"\x15\x03": "TLS", b"SSH-": "SSH", b"-ERR": "Redis's protocol", b"220 ": "FTP or SMTP"}

#: The requests that need a service; a connection answers a Ping itself.
Served: TypeAlias = Get | GetPart | Scan | Poll | Locate | Describe
Request: TypeAlias = Served | Ping
Answer: TypeAlias = Values | Part | Page | Changes | Location | Description | Pong | Failure


class ConnectionState(Enum):
    """The state of a connection. It only moves forward."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSED = "closed"


_OPEN, _CLOSED = ConnectionState.OPEN, ConnectionState.CLOSED


class Opened(NamedTuple):
    """Server: the handshake succeeded. Write `reply` (the Welcome) before anything else."""

    client: str
    version: int
    reply: bytes
    features: tuple[str, ...]


class BadRequest(NamedTuple):
    """Server: a malformed or unsupported request. Answer `Failure(id, code, details)`; the connection stays open."""

    id: int
    code: FailureCode
    details: Mapping[str, Detail]


#: A Cancel is an event only while the request that it names has no answer. It takes no answer of its own.
ServerEvent: TypeAlias = Opened | Request | Cancel | BadRequest
#: A Failure with id 0 is about the connection, which is CLOSED then.
ClientEvent: TypeAlias = Welcome | Answer


class BrokenConnection(RemoteProtocolError):
    """The peer's bytes end the connection: write `close_notice`, if any, and close.

    `events` are the valid ones before the fault in the same bytes. The caller may drop them, because their requests
    fail with the connection.
    """

    def __init__(
        self, message: str, code: FailureCode, events: Iterable[ServerEvent | ClientEvent], close_notice: bytes = b""
    ) -> None:
        super().__init__(message, code)
        self.events = tuple(events)
        self.close_notice = close_notice


#: The feature of a server that knows Cancel.
CANCEL = "cancel"
#: The feature of a server that knows GetPart.
PARTS = "parts"
#: What the feature of a proxy begins with that asks for clients of one address, which follows.
ON_BEHALF_OF = "for:"
#: The answer to each request, other than a Failure.
_ANSWER_OF: dict[type, type] = {
    Get: Values,
    GetPart: Part,
    Scan: Page,
    Poll: Changes,
    Locate: Location,
    Describe: Description,
    Ping: Pong,
}
_REQUESTS = (Get, GetPart, Scan, Poll, Locate, Describe, Ping)
_TAKEN = (*_REQUESTS, Cancel)
_ANSWERS = (Values, Part, Page, Changes, Location, Description, Pong, Failure)
_NONE = (type(None), 0, 0)


def check_answer(request: Request, answer: Answer) -> None:
    """Raise `RemoteProtocolError` unless this is an answer to the request."""
    expected = _ANSWER_OF[type(request)]
    if type(answer) is not expected:
        raise RemoteProtocolError(f"{type(answer).__name__} for a request that takes {expected.__name__}")
    check = _CHECKS.get(type(request))
    if check is not None:
        check(request, answer)


def _check_values(request: Get, answer: Values) -> None:
    if len(answer.results) != len(request.keys):
        raise RemoteProtocolError(f"{len(answer.results)} results for {len(request.keys)} keys")
    least = request.options.get("min_epoch")
    if type(least) is int:
        for epoch, result in zip(answer.epochs, answer.results, strict=True):
            if epoch < least and not isinstance(result, int):
                raise RemoteProtocolError(f"a result of epoch {epoch}, where min_epoch is {least}")


def _check_continues(request: Poll, answer: Changes) -> None:
    """Raise `RemoteProtocolError` unless the changes are those after the place that the poll names."""
    if not request.start_group < answer.stop_group <= request.stop_group:
        raise RemoteProtocolError(f"changes up to key group {answer.stop_group}, none of those asked for")
    epochs = [answer.next_epoch, *(run.epoch for run in answer.runs)]
    if min(epochs) < request.from_epoch:
        raise RemoteProtocolError(f"changes of epoch {min(epochs)}, from {request.from_epoch} on were asked for")


def _same_place(one: tuple[Namespace, Key] | None, other: tuple[Namespace, Key] | None) -> bool:
    """Whether two places are the same: namespaces that equal each other in Python may be different."""
    if one is None or other is None:
        return one is other
    return list(map(encode_key, one)) == list(map(encode_key, other))


def _check_leads_on(request: Describe, answer: Description) -> None:
    """Raise `RemoteProtocolError` unless the next page begins after this one."""
    if MORE in answer.attributes:
        last = answer.entries[-1] if answer.entries else {}
        name, after = last.get("name", last.get("job", "")), request.attributes.get(AFTER)
        if not isinstance(after, str) or not isinstance(name, str) or name <= after:
            raise RemoteProtocolError("a page of descriptions that goes on where it began")


def _check_part(request: GetPart, answer: Part) -> None:
    """Raise `RemoteProtocolError` unless the part can be the one asked for, and reading the next one leads on."""
    least = request.options.get("min_epoch")
    if type(least) is int and answer.epoch < least:
        raise RemoteProtocolError(f"a part of epoch {answer.epoch}, where min_epoch is {least}")
    if answer.after is not None:
        goes_on = request.after is None or encode_key(answer.after) > encode_key(request.after)
        if request.part != PAGE or not goes_on:
            raise RemoteProtocolError("a part that goes on where it began")
    if request.part == BYTES:
        found, rest = len(answer.result or b""), max(0, answer.total - request.start)
        if found > min(rest, request.length) or (rest and request.length and not found):
            raise RemoteProtocolError(f"{found} bytes, of {rest} more that a value has")


def _check_page(request: Scan, page: Page) -> None:
    shown = request.options.get("show", "values")
    if len(page.results) != (len(page.keys) if shown == "values" else 0) or (shown == "count" and page.keys):
        raise RemoteProtocolError(f"a page that does not show {shown}")
    limit = request.limit
    if limit is not None and page.selected > limit:
        raise RemoteProtocolError(f"a page of {page.selected} keys, where the limit is {limit}")
    if not request.start_group <= page.next_group <= request.stop_group:
        raise RemoteProtocolError(f"a page that goes on at key group {page.next_group}, outside the request's")
    if page.next_group == request.stop_group:
        if page.after is not None:
            raise RemoteProtocolError("a page that goes on after the last key group")
    elif limit != 0 and page.next_group == request.start_group and _same_place(page.after, request.after):
        raise RemoteProtocolError("a page that goes on where it began")
    least = request.options.get("min_epoch")
    if type(least) is int and page.selected and page.epoch < least:
        raise RemoteProtocolError(f"a page of epoch {page.epoch}, where min_epoch is {least}")


#: By the request, what else holds of its answer.
_CHECKS: dict[type, Callable[[Any, Any], None]] = {
    Get: _check_values,
    GetPart: _check_part,
    Scan: _check_page,
    Poll: _check_continues,
    Describe: _check_leads_on,
}


class _Connection:
    """What both sides have in common. `_waiting` has what each request without an answer waits for, by its id."""

    def __init__(self) -> None:
        self._waiting: dict[int, Any] = {}
        self.state = ConnectionState.HANDSHAKE

    @property
    def closed(self) -> bool:
        return self.state is ConnectionState.CLOSED

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ids of valid requests without an answer."""
        return tuple(self._waiting)

    def close(self) -> tuple[int, ...]:
        """End the connection: nothing more is sent or received. Returns the ids of requests without an answer."""
        self.state = ConnectionState.CLOSED
        left = self.waiting
        self._waiting.clear()
        return left


class ClientConnection(_Connection):
    """The client's side. Write `start()` first, then wait for the Welcome event before sending requests."""

    def __init__(
        self,
        *,
        token: bytes | None = None,
        client: str = "",
        versions: tuple[int, ...] = PROTOCOL_VERSIONS,
        features: tuple[str, ...] = (),
        max_frame: int = DEFAULT_MAX_FRAME,
    ) -> None:
        super().__init__()
        self._hello = Hello(versions, token, client, features, max_frame)
        self._own_max_frame = max_frame
        self._limits = Limits(max_frame=max_frame)
        self._reader = FrameReader(min(max_frame, HANDSHAKE_MAX_FRAME))
        self._ids = count(1)
        # The requests. An abandoned one stays, because its id is in use until its answer comes.
        self._waiting: dict[int, Request] = {}
        self._opening = b""
        self.welcome: Welcome | None = None

    @property
    def limits(self) -> Limits:
        """The limits of requests: the server's once its Welcome has come."""
        return self._limits

    def start(self) -> bytes:
        """The bytes that open the connection."""
        return frame(encode(self._hello))

    def next_id(self) -> int:
        """An id that no unanswered request has."""
        while True:
            number = next(self._ids)
            if number > MAX_ID:
                # Two threads may both reach the end. Either new counter works, because ids in use are skipped.
                self._ids = count(1)
            elif number not in self._waiting:
                return number

    def send(self, request: Request) -> bytes:
        """The bytes of a request. Raises `LocalProtocolError`, without effect, when the request is not allowed."""
        if self.state is not _OPEN:
            raise LocalProtocolError(f"a request needs an open connection, this one is {self.state.value}")
        if type(request) not in _ANSWER_OF:
            raise LocalProtocolError(f"a client does not send {type(request).__name__}")
        data = frame(encode(request, self._limits))
        if self._waiting.setdefault(request.id, request) is not request:
            raise LocalProtocolError(f"request id {request.id} is in use")
        return data

    def cancel(self, number: int) -> bytes:
        """The bytes that cancel an unanswered request; none when the server does not know Cancel. Its answer comes."""
        if self.state is not _OPEN or number not in self._waiting:
            return b""
        known = self.welcome is not None and CANCEL in self.welcome.features
        return frame(encode(Cancel(number))) if known else b""

    def receive(self, data: bytes | bytearray | memoryview) -> list[ClientEvent]:
        """The events of incoming bytes. Raises `BrokenConnection` when the server broke the protocol."""
        events: list[ClientEvent] = []
        if self.state is _CLOSED:
            return events
        if self.state is ConnectionState.HANDSHAKE:
            self._opening = (self._opening + bytes(data[:OPENING_BYTES]))[:OPENING_BYTES]
        try:
            for payload in self._reader.feed(data):
                if self.state is _OPEN:
                    self._on_answer(decode(payload, self._limits), events)
                else:
                    self._on_handshake(decode(payload, self._limits, (Welcome, Failure)), events)
                if self.state is _CLOSED:
                    break
        except RemoteProtocolError as exc:
            greeted, self.state = self.welcome is not None, ConnectionState.CLOSED
            foreign = None if greeted else next((_FOREIGN[it] for it in _FOREIGN if self._opening.startswith(it)), None)
            why = f"the peer speaks {foreign}, not qstate's protocol" if foreign else str(exc)
            raise BrokenConnection(why, exc.code, events) from exc
        return events

    def _on_handshake(self, message: Message, events: list[ClientEvent]) -> None:
        if type(message) is Failure and message.id == 0:
            self.state = ConnectionState.CLOSED
        elif type(message) is Welcome:
            if message.version not in self._hello.versions:
                raise RemoteProtocolError(
                    f"the server chose version {message.version}, not one of {self._hello.versions}",
                    FailureCode.VERSION_MISMATCH,
                )
            self.welcome = message
            self._limits = Limits(message.max_frame, message.max_keys)
            self._reader.max_frame = min(self._own_max_frame, message.max_frame)
            self.state = ConnectionState.OPEN
        else:
            raise RemoteProtocolError(f"a server starts with Welcome or Failure(0), not {type(message).__name__}")
        events.append(message)

    def _on_answer(self, message: Message, events: list[ClientEvent]) -> None:
        if not isinstance(message, _ANSWERS):
            raise RemoteProtocolError(f"a server does not send {type(message).__name__} now")
        number = message.id
        if not number:
            self.state = ConnectionState.CLOSED
            events.append(message)
            return
        request = self._waiting.get(number)
        if request is None:
            raise RemoteProtocolError(f"{type(message).__name__} for request {number}, which is not waiting")
        if type(message) is not Failure:
            check_answer(request, message)
        # Only after the checks: the request of a broken answer must stay among those that `close` returns.
        self._waiting.pop(number, None)
        events.append(message)


class ServerConnection(_Connection):
    """The server's side. Answer every request event and every BadRequest once, with `send`.

    `accepts` says whether a client with this token may connect. It must take no longer for a token that resembles a
    valid one.
    """

    def __init__(
        self,
        *,
        server: str = "",
        features: tuple[str, ...] = (),
        accepts: Callable[[bytes | None], bool] | None = None,
        versions: tuple[int, ...] = PROTOCOL_VERSIONS,
        max_frame: int = DEFAULT_MAX_FRAME,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_in_flight: int = MAX_ID,
    ) -> None:
        super().__init__()
        self._server = server
        self._features = features
        self._accepts = accepts
        self._versions = versions
        self._limits = Limits(max_frame, max_keys)
        #: The limits of answers: those of the client, too, once its Hello has come.
        self.answer_limits = self._limits
        self._max_in_flight = max_in_flight
        self._reader = FrameReader(HANDSHAKE_MAX_FRAME)
        # The class of the answer, the number of results, and the size of the request.
        self._waiting: dict[int, tuple[type, int, int]] = {}
        # The ids of unanswered BadRequest events. They are kept apart, because a second request with the id of an
        # unanswered one is such an event.
        self._refused: deque[int] = deque()

    def receive(self, data: bytes | bytearray | memoryview, most: int | None = None) -> list[ServerEvent]:
        """The events of incoming bytes. Raises `BrokenConnection`, with the close notice to write, when it must close.

        With `most`, at most so many events: the other bytes stay buffered for the next call.
        """
        events: list[ServerEvent] = []
        if self.state is _CLOSED:
            return events
        try:
            for payload in islice(self._reader.feed(data), most):
                if self.state is _OPEN:
                    event = self._request(payload)
                    if event is not None:
                        events.append(event)
                else:
                    events.append(self._handshake(payload))
        except RemoteProtocolError as exc:
            raise self._broken(exc, events) from exc
        return events

    @property
    def buffered(self) -> int:
        """How many received bytes were not taken out as messages yet."""
        return self._reader.buffered

    def drop_input(self) -> None:
        """Drop what is buffered. Nothing can be received afterwards."""
        self._reader.clear()

    def size_of(self, number: int) -> int:
        """How many bytes the payload of an unanswered request had; 0 if there is none of that id."""
        return self._waiting.get(number, _NONE)[2]

    def close(self) -> tuple[int, ...]:
        self._reader.clear()
        return super().close()

    def send(self, answer: Answer) -> bytes:
        """The bytes of an answer; `Failure(0, ...)` closes the connection.

        Raises `LocalProtocolError`, without effect, when no request waits for the answer, when it has the wrong type or
        size, or when its frame would be over the limit (code `TOO_LARGE`). The request then still waits for an answer.
        """
        if self.state is _CLOSED:
            raise LocalProtocolError("the connection is closed")
        if type(answer) not in _ANSWERS:
            raise LocalProtocolError(f"a server does not send {type(answer).__name__}")
        data = frame(encode(answer, self.answer_limits))
        number = answer.id
        if type(answer) is Failure:
            if number == 0:
                self.state = ConnectionState.CLOSED
            elif not self._settle_refused(number) and self._waiting.pop(number, None) is None:
                raise LocalProtocolError(f"no request {number} waits for an answer")
            return data
        expected = self._waiting.get(number)
        found = (type(answer), len(answer.results) if type(answer) is Values else 0)
        if expected is None or expected[0] is not found[0] or expected[1] != found[1]:
            raise LocalProtocolError(f"request {number} waits for {expected}, not for {found}")
        if self._waiting.pop(number, None) is None:
            raise LocalProtocolError(f"request {number} was answered twice")
        return data

    def _request(self, payload: bytes) -> ServerEvent | None:
        try:
            message = decode(payload, self._limits, _TAKEN)
        except BadContent as exc:
            return self._bad_request(exc.request_id, exc.code, exc.details)
        if type(message) is Cancel:
            return message if message.id in self._waiting else None
        if not isinstance(message, _REQUESTS):
            if isinstance(message, Hello | Welcome) or not message.id:
                raise RemoteProtocolError(f"a client does not send {type(message).__name__} now")
            return self._bad_request(message.id, FailureCode.UNSUPPORTED, {"field": "type", "expected": "a request"})
        expected = (_ANSWER_OF[type(message)], len(message.keys) if isinstance(message, Get) else 0, len(payload))
        if self._waiting.setdefault(message.id, expected) is not expected:
            details = {"field": "id", "expected": "one that no live request has"}
            return self._bad_request(message.id, FailureCode.MALFORMED, details)
        return message

    def _bad_request(self, number: int, code: FailureCode, details: Mapping[str, Detail]) -> BadRequest:
        self._refused.append(number)
        return BadRequest(number, code, details)

    def _settle_refused(self, number: int) -> bool:
        try:
            self._refused.remove(number)  # atomic, so two threads cannot settle the same one
        except ValueError:
            return False
        return True

    def _handshake(self, payload: bytes) -> Opened:
        try:
            message = decode(payload, self._limits, (Hello,))
        except RemoteProtocolError as exc:
            # With the default code: the protocol defines other codes for bad messages only after the handshake.
            raise RemoteProtocolError(str(exc)) from exc
        if type(message) is not Hello:
            raise RemoteProtocolError(f"a client starts with Hello, not {type(message).__name__}")
        shared = set(message.versions) & set(self._versions)
        if not shared:
            raise RemoteProtocolError("no version in common", FailureCode.VERSION_MISMATCH)
        if self._accepts is not None and not self._accepts(message.token):
            raise RemoteProtocolError(
                "no valid token, and no certificate that the rules name", FailureCode.UNAUTHENTICATED
            )
        limits = self._limits
        welcome = Welcome(
            max(shared), self._server, self._features, limits.max_frame, limits.max_keys, self._max_in_flight
        )
        self.answer_limits = Limits(min(limits.max_frame, message.max_frame), limits.max_keys)
        self._reader.max_frame = self._limits.max_frame
        self.state = ConnectionState.OPEN
        return Opened(message.client, welcome.version, frame(encode(welcome)), message.features)

    def _broken(self, error: ProtocolError, events: list[ServerEvent]) -> BrokenConnection:
        self.state = ConnectionState.CLOSED
        self._reader.clear()
        details: dict[str, Detail] = {}
        if error.code is FailureCode.VERSION_MISMATCH:
            details["versions"] = ",".join(str(version) for version in sorted(self._versions))
        elif error.code is FailureCode.TOO_LARGE:
            details["limit"] = self._reader.max_frame
        close_notice = frame(encode(Failure(0, error.code, details)))
        return BrokenConnection(str(error), error.code, events, close_notice)
