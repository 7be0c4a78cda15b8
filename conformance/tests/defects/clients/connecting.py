"""Clients that lose their connections, or do not let go of them."""

from __future__ import annotations

from typing import Any

from qstate.protocol import ClientConnection, Failure, connection
from qstate.runtime.link import Link, LinkState
from qstate.runtime.sync_links import SyncLink, SyncLinks
from tests.defects.clients.seeds import defect


@defect("connections.a_connection_that_was_closed_while_idle_is_made_again")
def never_reconnects() -> None:
    send = SyncLinks.send

    def send_once(self: Any, errand: Any, command: Any, now: float) -> None:
        lost = [link for link in self._links.values() if link.state is LinkState.LOST]
        if lost:
            errand.on_lost(getattr(command, "part", 0), 20, {}, now)
        else:
            send(self, errand, command, now)

    SyncLinks.send = send_once  # type: ignore[method-assign]


@defect("connections.requests_in_flight_on_a_connection_that_ends_are_unavailable")
def leaves_requests_of_a_lost_connection_waiting() -> None:
    lost = Link.lost

    def lose(self: Any, code: int, details: Any, now: float) -> None:
        self._pending.clear()
        lost(self, code, details, now)

    Link.lost = lose  # type: ignore[method-assign]


@defect("connections.a_server_that_goes_away_or_is_too_busy_is_told_as_that")
def takes_answers_after_the_end() -> None:
    on_answer = ClientConnection._on_answer

    def answer(self: Any, message: Any, events: Any) -> None:
        if type(message) is Failure and message.id == 0:
            return
        on_answer(self, message, events)

    ClientConnection._on_answer = answer  # type: ignore[method-assign]


@defect("connections.a_connection_with_a_failure_of_its_own_is_not_used_again")
def goes_on_after_the_end() -> None:
    received = Link.received

    def receive(self: Any, data: bytes, now: float) -> None:
        if data[5:7] == b"\x0a\x00":  # a Failure of id 0
            for errand, part, _ in [*self._pending.values()]:
                errand.on_lost(part, 20, {}, now)
            self._pending.clear()
            self._wire._waiting.clear()
            assert self._wire.state is connection.ConnectionState.OPEN
            return
        received(self, data, now)

    Link.received = receive  # type: ignore[method-assign]


@defect("connections.close_leaves_no_connection")
def leaves_its_connections_open() -> None:
    kept: list[Any] = []

    def forget(self: SyncLink) -> None:
        if self._sock is not None:
            self._links.unwatch(self._sock)
            kept.append(self._sock)
            self._sock = None

    SyncLink._abort = forget  # type: ignore[method-assign]


@defect("deadlines.a_server_that_never_welcomes_does_not_hold_a_request")
def waits_for_the_welcome_without_a_limit() -> None:
    wait = SyncLinks.wait

    def wait_for_welcome(self: Any, errand: Any, until: float) -> bool:
        while any(link.state is LinkState.CONNECTING for link in self._links.values()):
            self._lead(10.0)
        return wait(self, errand, until)

    SyncLinks.wait = wait_for_welcome  # type: ignore[method-assign]
