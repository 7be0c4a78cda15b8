"""Clients whose requests break the protocol, or differ from the caller's."""

from __future__ import annotations

import unicodedata
from typing import Any

from qstate.client import QueryableStateClient
from qstate.protocol.connection import ClientConnection
from qstate.protocol.limits import Limits
from qstate.runtime.client.sync_transport import SyncLink
from qstate.runtime.routing.pipelined_connection import PipelinedConnection
from qstate_conformance.client import frames
from qstate_conformance.client.python_driver import PythonDriver
from tests.defects.clients.seeds import defect


@defect("handshake.hello_comes_first_and_nothing_more_before_the_welcome")
def does_not_wait_for_the_welcome() -> None:
    opened = SyncLink.opened

    def open_and_ask(self: SyncLink) -> None:
        opened(self)
        self._write(frames.message(frames.PING, 1_000_000))

    SyncLink.opened = open_and_ask  # type: ignore[method-assign]


@defect("handshake.the_token_travels_as_it_is")
def cuts_the_token() -> None:
    make = ClientConnection.__init__

    def make_with_less(self: Any, *, token: bytes | None = None, **kwargs: Any) -> None:
        make(self, token=token if token is None else token.rstrip(b"\0"), **kwargs)

    ClientConnection.__init__ = make_with_less  # type: ignore[method-assign]


@defect("deadlines.a_server_that_does_not_know_cancel_gets_none")
def cancels_on_any_server() -> None:
    def cancel(self: ClientConnection, number: int) -> bytes:
        return frames.message(17, number)

    ClientConnection.cancel = cancel  # type: ignore[method-assign]


@defect("messages.ids_in_flight_differ")
def has_one_id_for_all() -> None:
    def next_id(self: ClientConnection) -> int:
        self._waiting.clear()
        return 7

    ClientConnection.next_id = next_id  # type: ignore[method-assign]


@defect("deadlines.a_late_answer_is_dropped_and_its_id_not_used_again")
def uses_an_id_again_after_its_deadline() -> None:
    send = PipelinedConnection.send

    def forget(link: Any) -> None:
        late = [number for number, (operation, _, _) in link._pending.items() if operation.finished]
        for number in late:
            del link._pending[number]
            del link._wire._waiting[number]
            link._wire._ids = iter([number, *range(number + 1000, number + 2000)])

    def send_anew(self: Any, operation: Any, command: Any, now: float) -> None:
        forget(self)
        send(self, operation, command, now)

    PipelinedConnection.send = send_anew  # type: ignore[method-assign]


@defect("deadlines.a_late_answer_does_not_end_the_connection")
def frees_an_id_at_its_deadline() -> None:
    received = PipelinedConnection.received

    def receive(self: Any, data: bytes, now: float) -> None:
        for number in [number for number, (operation, _, _) in self._pending.items() if operation.finished]:
            del self._pending[number]
            del self._wire._waiting[number]
        received(self, data, now)

    PipelinedConnection.received = receive  # type: ignore[method-assign]


@defect("messages.no_frame_is_larger_than_the_welcome_allows")
def ignores_max_frame() -> None:
    _with_limits(lambda limits: Limits(1 << 24, limits.max_keys))


@defect("messages.more_keys_than_a_get_may_have_are_split_or_refused")
def ignores_max_keys() -> None:
    _with_limits(lambda limits: Limits(limits.max_frame))


def _with_limits(change: Any) -> None:
    on_handshake = ClientConnection._on_handshake

    def shake(self: Any, message: Any, events: Any) -> None:
        on_handshake(self, message, events)
        self._limits = change(self._limits)

    ClientConnection._on_handshake = shake  # type: ignore[method-assign]


@defect("messages.text_is_not_normalized")
def normalizes_text() -> None:
    class Normalizing(QueryableStateClient):
        def get(self, job: str, state: str, key: Any, *args: Any, **kwargs: Any) -> Any:
            key = unicodedata.normalize("NFC", key) if isinstance(key, str) else key
            return super().get(job, state, key, *args, **kwargs)

    PythonDriver.make_client = Normalizing


@defect("messages.a_get_says_what_was_asked_in_sound_messages")
def forgets_the_isolation() -> None:
    class Forgetful(QueryableStateClient):
        def get(self, *args: Any, isolation: str = "live", **kwargs: Any) -> Any:
            return super().get(*args, **kwargs)

    PythonDriver.make_client = Forgetful


@defect("messages.what_is_no_key_is_never_sent")
def takes_a_tuple_of_one_for_a_key() -> None:
    class Unwrapping(QueryableStateClient):
        def get(self, job: str, state: str, key: Any, *args: Any, **kwargs: Any) -> Any:
            key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
            return super().get(job, state, key, *args, **kwargs)

    PythonDriver.make_client = Unwrapping
