"""A proxy's connection to one state server, which all gets share. A broken connection is replaced.

Rules of this module: the socket of a `PipelinedConnection`, on a reactor. Everything runs on the reactor's driving
thread, so nothing is locked. Only the look-up of a host name runs on a thread of the pool.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qstate.errors import Detail, query_error
from qstate.host.line_limit import limited
from qstate.runtime.net.channel import Channel
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.worker_pool import WorkerPool
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, Peers, Phase, PipelinedConnection

__all__ = ["OwnerConnection"]

log = limited(logging.getLogger(__name__))

#: How long a connect and its handshake may take.
CONNECT_TIMEOUT_S = 2.0
#: A proxy has many clients, so it waits longer than each of them before it gives up a connection that they share.
SILENCE_S = 3.0


class OwnerConnection(PipelinedConnection):
    """The connection to one host and port. Only the driving thread may use it."""

    def __init__(
        self,
        reactor: Reactor,
        pool: WorkerPool,
        address: tuple[str, int],
        *,
        settings: ConnectionSettings,
        peers: Peers,
    ) -> None:
        super().__init__(*address, replace(settings, silence_s=SILENCE_S), peers, reactor.clock())
        self._reactor = reactor
        self._pool = pool
        self._max_unsent_bytes = 2 * settings.max_frame
        self._channel: Channel | None = None
        self._heard = False
        self._timeout: Timer | None = None
        self._untried: list[Any] = []

    def _connect(self) -> None:
        self._timeout = self._reactor.call_later(CONNECT_TIMEOUT_S, self._connect_late)
        try:
            self._resolve(socket.AI_NUMERICHOST)
        except OSError:
            # A name: the look-up may take long.
            self._pool.submit(self._resolve_name)

    def notice_end(self) -> None:
        # The reactor also sees the end, but perhaps only after the next get was sent.
        if self.idle and self._channel is not None and self._channel.has_input():
            self.unreachable("the server ended the connection", self._reactor.clock())

    def lost(self, code: int, details: Mapping[str, Detail], now: float, *, silent: bool = False) -> None:
        if self.phase is not Phase.LOST:
            reason = details.get("reason") or query_error(code, details)
            log.info("lost the state server at %s:%s: %s", self.host, self.port, reason)
        super().lost(code, details, now, silent=silent)

    def _write(self, data: bytes) -> None:
        if self._channel is not None:
            self._channel.send_soon(data)

    def _abort(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        if self._channel is not None:
            self._channel.close()

    def _resolve(self, flags: int = 0) -> None:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=flags)
        self._reactor.call_soon(self._resolved, found)

    def _resolve_name(self) -> None:
        try:
            self._resolve()
        except OSError as exc:
            self._reactor.call_soon(self._on_close, exc)

    def _resolved(self, addresses: list[Any]) -> None:
        self._untried = addresses
        self._connect_next()

    def _connect_next(self) -> None:
        if self.phase is Phase.LOST:
            return
        family, kind, protocol, _, address = self._untried.pop(0)
        self._channel = Channel(
            self._reactor,
            socket.socket(family, kind, protocol),
            on_data=self._on_data,
            on_close=self._on_close,
            max_unsent_bytes=self._max_unsent_bytes,
        )
        self._channel.connect(address)
        self.opened()

    def _connect_late(self) -> None:
        if self.phase is Phase.CONNECTING:
            self.unreachable("no connection in time", self._reactor.clock())

    def _on_data(self, data: bytes) -> None:
        self._heard = True
        self.received(data, self._reactor.clock())

    def _on_close(self, reason: BaseException | None) -> None:
        if self._untried and not self._heard:
            # The server may not listen on every address of its name, such as the IPv6 one.
            self._connect_next()
        else:
            self.unreachable(str(reason) if reason else "the server closed the connection", self._reactor.clock())
