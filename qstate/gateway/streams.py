"""The changes of a state as a stream: server-sent events, or the messages of a WebSocket.

Rules of this module: a request in, a reader's events out, until the caller or the gateway ends it. `feeds` decides what
is read, `server` cuts off callers that read nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from qstate.errors import ConfigError, QStateError
from qstate.gateway.events import RETRY, Event, error_event
from qstate.gateway.feeds import Feeds, Reader, Selection
from qstate.gateway.guards import Places, address_of
from qstate.gateway.metrics import GatewayMetrics
from qstate.gateway.parameters import MOST_KEYS, Parameters, name_of, token_of
from qstate.gateway.problems import answer_to, status_of
from qstate.gateway.upstream import Upstream
from qstate.keys import MAX_PARALLELISM_LIMIT, Key
from qstate.runtime.client.subscriptions import Place, Span, place_in
from qstate.runtime.client.subscriptions import token_of as place_of
from qstate.values.text_forms import StateTypes, key_of

__all__ = ["Streams"]

EVENTS = "text/event-stream"
#: The name of the messages' form.
PROTOCOL = "qstate.v1"
#: A stream that fails within so many seconds fails as an HTTP answer.
FIRST_EVENT_S = 1.0
PARAMETERS = ("key", "keys", "begins", "column", "namespace", "from_epoch", "after")
#: Codes of WebSockets: against the rules, try again later, failed.
POLICY, LATER, FAILED = 1008, 1013, 1011


class Streams:
    """Endpoints of Starlette."""

    def __init__(self, upstream: Upstream, feeds: Feeds, places: Places, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._upstream = upstream
        self._feeds = feeds
        self._places = places

    async def changes(self, request: Request) -> Response:
        """The stream as server-sent events."""
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        with ExitStack() as left:
            left.enter_context(self._places.held(address_of(request)))
            reader, first = await self._begin(request)
            left.callback(reader.leave)
            # The stream leaves both when it ends.
            return _EventStream(reader, first, left.pop_all().close, self._metrics.event_sent)

    async def messages(self, socket: WebSocket) -> None:
        """The stream as messages of a WebSocket."""
        try:
            with self._places.held(address_of(socket)):
                await self._serve(socket)
        except QStateError as exc:
            await socket.send_denial_response(answer_to(socket, exc))

    async def _serve(self, socket: WebSocket) -> None:
        reader, first = await self._begin(socket)
        try:
            await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
            ended = await _until_gone(self._send_messages(socket, reader, first), _closed_by_caller(socket))
            if ended is not None:
                with suppress(RuntimeError, WebSocketDisconnect):
                    await socket.close(ended)
        finally:
            reader.leave()

    async def _send_messages(self, socket: WebSocket, reader: Reader, event: Event | None) -> int:
        """Send events until the last one. Returns the code to close with."""
        while event is None or not event.last:
            if event is not None and event.message:
                await socket.send_text(event.message)
                self._metrics.event_sent()
            try:
                event = await reader.next()
            except QStateError as exc:
                event = error_event(exc)
        if event.error is None:
            return 1012
        await socket.send_text(event.message)
        status = status_of(event.error)
        return LATER if status == 503 else POLICY if status < 500 else FAILED

    async def _begin(self, request: HTTPConnection) -> tuple[Reader, Event | None]:
        """A reader, and its first event if that is there soon. Raises the failure of the stream."""
        selection, begin = await self._wanted(request)
        reader = self._feeds.reader(selection, begin)
        first = None
        try:
            with suppress(asyncio.TimeoutError):
                first = await asyncio.wait_for(reader.next(), FIRST_EVENT_S)
            if first is not None and first.error is not None:
                raise first.error
        except BaseException:
            reader.leave()
            raise
        return reader, first

    async def _wanted(self, request: HTTPConnection) -> tuple[Selection, str | None]:
        parameters = Parameters(request.query_params, *PARAMETERS)
        job, state, token = name_of(request, "job"), name_of(request, "state"), token_of(request)
        async with self._upstream.caller(token) as caller:
            types = await caller.types(job, state, parameters.timeout_s)
        keys, prefix = _keys(parameters, types), parameters.prefix(types)
        if keys is not None and prefix is not None:
            raise ConfigError("key and keys exclude begins and column")
        namespaces = (parameters.namespace(types),) if "namespace" in parameters or keys is not None else ()
        begin = _place(parameters, request.headers.get("last-event-id"))
        return Selection(token, job, state, keys, prefix, namespaces), begin


def _keys(parameters: Parameters, types: StateTypes) -> tuple[Key, ...] | None:
    text = parameters.text("keys")
    if "key" in parameters:
        if text is not None:
            raise ConfigError("key and keys exclude each other")
        return (parameters.key(types),)
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=list[Any])
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(f"keys must be a JSON array of keys, got {text!r:.80}") from None
    if not 0 < len(found) <= MOST_KEYS:
        raise ConfigError(f"keys must be 1 to {MOST_KEYS} keys, got {len(found)}")
    return tuple(dict.fromkeys(key_of(key, types.keys) for key in found))


def _place(parameters: Parameters, last_event_id: str | None) -> str | None:
    place = last_event_id or parameters.text("after")
    epoch = parameters.number("from_epoch")
    if place is not None:
        # It goes into the id of events: only what this side would write itself.
        return place_of(place_in(place))
    if epoch is None:
        return None
    if not 0 <= epoch < 1 << 63:
        raise ConfigError(f"from_epoch must be the number of an epoch, from 0, got {epoch}")
    return place_of(Place((Span(0, MAX_PARALLELISM_LIMIT, epoch),)))


class _EventStream(Response):
    media_type = EVENTS

    def __init__(
        self, reader: Reader, first: Event | None, leave: Callable[[], None], sent: Callable[[], None]
    ) -> None:
        # Nothing in between may keep events back, nor keep them at all.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._reader, self._first, self._leave, self._sent = reader, first, leave, sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _until_gone(self._send(send), _disconnected(receive))
        finally:
            self._leave()

    async def _send(self, send: Send) -> None:
        async def give(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await give(RETRY)
        event = self._first
        while event is None or not event.last:
            if event is not None:
                await give(event.sse)
                self._sent()
            try:
                event = await self._reader.next()
            except QStateError as exc:
                event = error_event(exc)
        await give(event.sse, more=False)


async def _until_gone(sending: Any, gone: Any) -> int | None:
    """Run both until one ends. Returns what the sender returned."""
    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    sent = found[0]
    if isinstance(sent, Exception) and not isinstance(sent, OSError | RuntimeError | WebSocketDisconnect):
        raise sent
    return sent if isinstance(sent, int) else None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _closed_by_caller(socket: WebSocket) -> None:
    # A caller has nothing to say; what it says is read, so that its close is noticed.
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
