"""The HTTP server of a gateway: uvicorn, with bounds on what a connection may cost.

Rules of this module: it wraps the optional package `uvicorn`, and knows nothing of jobs and states.

uvicorn bounds the wait for the next request. Here are the other bounds: how many connections there are, the size of a
request's head and the time that it may take to arrive, how many requests may come before the first is answered, how
long a peer may read nothing of what it gets, and how many lines uvicorn writes into the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any

import uvicorn
from msgspec import json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from qstate.errors import ConfigError, Overloaded, QueryError
from qstate.gateway.app import Gateway
from qstate.gateway.guards import Places
from qstate.gateway.problems import MEDIA_TYPE, problem_of
from qstate.gateway.settings import GatewaySettings
from qstate.host.line_limit import limited
from qstate.runtime.net.listener import host_and_port, listen

__all__ = ["GatewayServer"]

log = limited(logging.getLogger(__name__))
#: uvicorn writes a line for each bad request, and at INFO one for each WebSocket, with the keys that it is about.
limited(logging.getLogger("uvicorn.error"))

HEAD_TIMEOUT_S = 10.0
MOST_HEAD_BYTES = 64 << 10
MOST_PIPELINED = 16
UNREAD_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 60
#: How long a shutdown waits for answers that are being sent.
SHUTDOWN_S = 10
#: How long requests may still wait for the query port then. Uvicorn would cancel them, without an answer.
REQUESTS_S = 8.0
#: What a caller sends over a WebSocket is read and ignored.
MOST_MESSAGE_BYTES = 4096
#: How often it looks for renewed certificates, its own and that of its clients.
RENEW_S = 1.0


class _Bounded:
    """Cuts off a peer that does not read."""

    transport: Any
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        if self._unread is None:
            self._unread = asyncio.get_running_loop().call_later(UNREAD_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._read_again()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Http(_Bounded, HttpToolsProtocol):
    """An HTTP connection that has a place, and whose requests arrive in time and are not too large."""

    def __init__(self, *arguments: Any, places: Places, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._places = places
        self._address: str | None = None
        self._head: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._within_head = self._within_body = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        try:
            self._places.enter(address)
        except Overloaded:
            transport.abort()
            return
        self._address = address
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._read_again()
        if self._address is not None:
            self._places.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_idle():
            return
        self._await_head()
        if self._within_body:
            return  # the rest of one that was refused: its sender may read the answer when it has sent all
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES:
            self.send_400_response(f"The head of a request has at most {MOST_HEAD_BYTES} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, and end the connection: where the next one begins is not known."""
        body = json.encode(problem_of(ConfigError(f"{msg} Characters of a URL beyond ASCII are percent-encoded.")))
        head = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % pair for pair in self.server_state.default_headers)]
        head += [b"content-type: %b" % MEDIA_TYPE.encode(), b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join((*head, b"", body)))
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._within_head = True

    def on_headers_complete(self) -> None:
        self._within_head, self._within_body = False, True
        self._head_bytes = 0
        self._stop_waiting()
        if len(self.pipeline) >= MOST_PIPELINED:
            self.transport.abort()
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._within_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A part of the next head may have come with the request that was answered.
        if self._within_head:
            self._await_head()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self.transport.get_protocol().left = partial(self._places.leave, self._address or "")

    def _is_idle(self) -> bool:
        """Whether it waits for a head: no request is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        own = self.transport.get_protocol() is self
        return own and not answering and not self.transport.is_closing()

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class _WebSocket(_Bounded, WebSocketsSansIOProtocol):
    """A WebSocket, which has the place of the HTTP connection that it was."""

    left: Any = staticmethod(lambda: None)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # It was refused. Uvicorn takes the handshake for forgotten otherwise, and logs an error.
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_again()
        self.left()
        super().connection_lost(exc)


class GatewayServer(uvicorn.Server):
    """A gateway that listens. `serve` it in an event loop, or `run` it until SIGINT or SIGTERM.

    Raises `ConfigError` when no port is free.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._gateway = Gateway(settings)
        self._settings = settings
        places = Places("connections", settings.max_connections, settings.max_connections_per_address)
        config = uvicorn.Config(
            self._gateway.app,
            http=partial(_Http, places=places),  # type: ignore[arg-type]
            ws=_WebSocket,
            ws_max_size=MOST_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        config.load()
        tls = settings.tls.for_http() if settings.tls else None
        if tls is not None:
            config.ssl = tls.lasting_context()
        self._renewable = [one for one in (tls, settings.upstream_tls) if one is not None]
        super().__init__(config)
        self._socket = listen(settings.host, settings.ports, "gateway")

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on."""
        return host_and_port(self._socket.getsockname())

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`. Raises `ConfigError` if it must not serve this query port."""
        try:
            await self._gateway.upstream.guard.check()
        except QueryError as exc:
            log.warning("the query port does not answer yet: %s", exc)
        except ConfigError:
            self._socket.close()
            raise
        renewing = asyncio.create_task(self._renew())
        try:
            await super().serve([self._socket])
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            for tls in self._renewable:
                await asyncio.to_thread(tls.renew)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams end first: uvicorn waits for them. Requests that wait for long are answered that it ends."""
        await self._gateway.feeds.close()
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        await asyncio.sleep(REQUESTS_S)
        await self._gateway.upstream.close()
