"""Clients that lose their connections, or do not close them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from qstate.protocol import connection
from qstate.protocol.connection import ClientConnection
from qstate.protocol.messages import Failure
from qstate.runtime.client.operations import GetOperation, RoutedOperation
from qstate.runtime.client.sync_transport import SyncLink, SyncLinks
from qstate.runtime.routing.pipelined_connection import Phase, PipelinedConnection
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from tests.defects.clients.seeds import defect


def _fails_instead_of_sending(when: Callable[[SyncLinks], bool]) -> None:
    """A client that fails a request, instead of sending it, when its links are like that."""
    for name in ("_ask", "_look_up"):
        send = getattr(RoutedOperation, name)

        def send_unless(self: Any, command: Any, now: float, send: Callable[..., None] = send) -> None:
            if when(self._links):
                self.on_lost(getattr(command, "part", 0), 20, {}, now)
            else:
                send(self, command, now)

        setattr(RoutedOperation, name, send_unless)


def _gives_up_after(connections: int, counts: Callable[[Any], bool]) -> None:
    """A client that sends nothing more when so many connections that count are lost.

    It counts them where they are lost: one that ends while it is idle may be noticed, and replaced, before a request.
    """
    lost = PipelinedConnection.lost
    gone: Counter[Any] = Counter()

    def count(self: Any, code: int, details: Any, now: float) -> None:
        gone[self._links] += self.phase is not Phase.LOST and counts(self)
        lost(self, code, details, now)

    PipelinedConnection.lost = count  # type: ignore[method-assign]
    _fails_instead_of_sending(lambda links: gone[links] >= connections)


@defect("connections.a_connection_that_was_closed_while_idle_is_made_again")
def never_reconnects() -> None:
    _gives_up_after(1, lambda link: link.phase is Phase.READY)


@defect("connections.a_request_under_which_the_connection_ends_is_unavailable_and_not_sent_again")
def leaves_requests_of_a_lost_connection_waiting() -> None:
    lost = PipelinedConnection.lost

    def lose(self: Any, code: int, details: Any, now: float) -> None:
        self._pending.clear()
        lost(self, code, details, now)

    PipelinedConnection.lost = lose  # type: ignore[method-assign]


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
    received = PipelinedConnection.received

    def receive(self: Any, data: bytes, now: float) -> None:
        if data[5:7] == b"\x0a\x00":  # a Failure of id 0
            for operation, part, _ in [*self._pending.values()]:
                operation.on_lost(part, 20, {}, now)
            self._pending.clear()
            self._wire._waiting.clear()
            assert self._wire.state is connection.ConnectionState.OPEN
            return
        received(self, data, now)

    PipelinedConnection.received = receive  # type: ignore[method-assign]


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

    def wait_for_welcome(self: Any, operation: Any, until: float) -> bool:
        while any(link.phase is Phase.CONNECTING for link in self._links.values()):
            self._lead(10.0)
        return wait(self, operation, until)

    SyncLinks.wait = wait_for_welcome  # type: ignore[method-assign]


@defect("connections.a_client_connects_again_as_often_as_it_has_to")
def reconnects_twenty_times() -> None:
    _gives_up_after(20, lambda link: link.phase is Phase.READY)


@defect("connections.a_server_that_turned_a_client_away_often_is_tried_again")
def gives_a_server_up_that_turned_it_away_twenty_times() -> None:
    _gives_up_after(20, lambda link: link.phase is Phase.CONNECTING)


@defect("connections.a_dead_connection_is_given_up")
def keeps_dead_connections() -> None:
    PipelinedConnection.gave_up = lambda self, operation, now: None  # type: ignore[method-assign]


@defect("connections.a_dead_connection_is_given_up")
def gives_a_dead_connection_up_after_a_long_deadline_alone() -> None:
    gave_up = PipelinedConnection.gave_up

    def give_up(self: Any, operation: Any, now: float) -> None:
        if any(other is operation and now - sent >= self._silence_s for other, _, sent in self._pending.values()):
            gave_up(self, operation, now)

    PipelinedConnection.gave_up = give_up  # type: ignore[method-assign]


@defect("routing.a_dead_connection_to_an_owner_is_given_up")
def keeps_dead_connections_to_owners() -> None:
    def give_up(self: Any, operation: Any, now: float) -> None:
        for link in list(self.open):
            if (link.host, link.port) in self.states.proxies:
                link.gave_up(operation, now)

    SyncLinks.gave_up = give_up  # type: ignore[method-assign]


def _sends_again_what_was_lost(link: type[PipelinedConnection]) -> None:
    lost = link.lost

    def lose(self: Any, code: int, details: Any, now: float) -> None:
        sent = [(operation, part) for operation, part, _ in self._pending.values()]
        self._pending.clear()
        lost(self, code, details, now)
        for operation, part in sent:
            operation.on_unsent(part, code, details, now)

    link.lost = lose  # type: ignore[method-assign]


@defect("connections.a_request_under_which_the_connection_ends_is_unavailable_and_not_sent_again")
def sends_again_what_was_sent() -> None:
    _sends_again_what_was_lost(PipelinedConnection)


@defect("connections.requests_in_flight_together_end_with_their_connection")
def sends_again_what_was_sent_together() -> None:
    _sends_again_what_was_lost(PipelinedConnection)


@defect("connections.a_request_under_which_the_connection_ends_is_unavailable_and_not_sent_again", PythonAsyncDriver)
def sends_gets_again_that_travelled_together() -> None:
    _sends_again_what_was_lost(PipelinedConnection)


@defect("routing.a_get_under_which_its_owner_dies_goes_to_no_other_owner")
def asks_the_next_owner() -> None:
    _sends_again_what_was_lost(PipelinedConnection)


@defect("connections.a_value_is_read_by_the_description_whose_fingerprint_it_has")
def reads_by_the_description_that_it_knew_first() -> None:
    found = GetOperation._found

    def locate(self: Any, known: Any, now: float) -> None:
        before = self._known
        found(self, known, now)
        self._known = before or self._known

    GetOperation._found = locate  # type: ignore[method-assign]
