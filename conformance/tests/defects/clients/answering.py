"""Clients that accept a wrong answer, or give an answer to the wrong request."""

from __future__ import annotations

from typing import Any, ClassVar

from qstate.client import QueryableStateClient
from qstate.errors import SerializationError
from qstate.protocol import connection, messages
from qstate.protocol.codec import FrameReader
from qstate.protocol.connection import ClientConnection
from qstate.protocol.messages import Get, Values, Welcome
from qstate.runtime.client import batching
from qstate.runtime.routing.pipelined_connection import PipelinedConnection
from qstate.views import ViewMaker
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from qstate_conformance.client.python_driver import PythonDriver
from tests.defects.clients.seeds import defect, ignore_rules_of


@defect("handshake.a_version_that_was_not_offered_is_refused")
def takes_any_version() -> None:
    on_handshake = ClientConnection._on_handshake

    def shake(self: Any, message: Any, events: Any) -> None:
        on_handshake(self, message._replace(version=1) if type(message) is Welcome else message, events)

    ClientConnection._on_handshake = shake  # type: ignore[method-assign]


@defect("handshake.what_a_newer_server_adds_to_its_welcome_is_ignored")
def refuses_features_that_it_does_not_know() -> None:
    on_handshake = ClientConnection._on_handshake

    def shake(self: Any, message: Any, events: Any) -> None:
        if type(message) is Welcome and message.features:
            raise connection.RemoteProtocolError("unknown features")
        on_handshake(self, message, events)

    ClientConnection._on_handshake = shake  # type: ignore[method-assign]


@defect("handshake.a_handshake_over_the_limit_is_refused_by_its_length")
def takes_frames_of_any_length() -> None:
    make = FrameReader.__init__

    def make_larger(self: FrameReader, max_frame: int = 0) -> None:
        make(self, (1 << 32) - 1)

    FrameReader.__init__ = make_larger  # type: ignore[method-assign]


@defect("delivery.answers_in_any_order_reach_their_own_requests")
def takes_answers_in_the_order_of_asking() -> None:
    received = PipelinedConnection.received

    class InOrder(dict[int, Any]):
        def pop(self, number: int, default: Any = None) -> Any:  # type: ignore[override]
            return super().pop(next(iter(self)), default) if self else default

    def receive(self: Any, data: bytes, now: float) -> None:
        if type(self._pending) is not InOrder:
            self._pending = InOrder(self._pending)
        received(self, data, now)

    PipelinedConnection.received = receive  # type: ignore[method-assign]


@defect("delivery.answers_in_any_order_reach_their_own_requests", PythonAsyncDriver)
def mixes_up_gets_that_travel_together() -> None:
    deliver = batching._deliver
    batching._deliver = lambda operation, futures: deliver(operation, futures[::-1])


@defect("delivery.answers_may_come_byte_by_byte")
def expects_an_answer_in_one_piece() -> None:
    feed = FrameReader.feed

    def feed_whole(self: Any, data: Any) -> Any:
        # What is not whole is thrown away with the read that brought it.
        yield from feed(self, data)
        self.clear()

    FrameReader.feed = feed_whole  # type: ignore[method-assign]


@defect("delivery.the_results_of_many_keys_are_in_their_order")
def sorts_the_keys() -> None:
    class Sorting(QueryableStateClient):
        def get_many(self, job: str, state: str, keys: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = list(keys)
            found = super().get_many(job, state, sorted(wanted, reverse=True), *args, **kwargs)
            return dict(zip(wanted, found.values(), strict=True))

    PythonDriver.make_client = Sorting


@defect("hostile.an_answer_that_fits_no_request_ends_the_connection")
def passes_over_answers_to_nobody() -> None:
    on_answer = ClientConnection._on_answer

    def answer(self: Any, message: Any, events: Any) -> None:
        if getattr(message, "id", 0) in (0, *self._waiting):
            on_answer(self, message, events)

    ClientConnection._on_answer = answer  # type: ignore[method-assign]


@defect("hostile.an_answer_that_fits_no_request_ends_the_connection")
def ignores_the_number_of_results() -> None:
    check = connection.check_answer

    def check_type(request: Any, answer: Any) -> None:
        if type(answer) is Values and type(request) is Get:
            request = request._replace(keys=request.keys[:1] * len(answer.results))
        check(request, answer)

    connection.check_answer = check_type


@defect("hostile.values_that_break_their_table_end_the_connection")
def fails_the_request_and_keeps_the_broken_stream() -> None:
    receive = ClientConnection.receive

    def receive_all(self: Any, data: Any) -> Any:
        try:
            return receive(self, data)
        except connection.BrokenConnection as exc:
            self.state = connection.ConnectionState.OPEN
            return list(exc.events)

    ClientConnection.receive = receive_all  # type: ignore[method-assign]


@defect("hostile.a_value_that_is_garbage_is_a_failure_of_its_own")
def crashes_on_garbage() -> None:
    get = QueryableStateClient.get

    class Fragile(QueryableStateClient):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            view = get(self, *args, **kwargs)
            try:
                view.value()
            except SerializationError as exc:
                raise RuntimeError("what is that?") from exc
            return view

    PythonDriver.make_client = Fragile


@defect("values.each_result_has_the_epoch_that_it_is_from")
def has_one_epoch_for_all() -> None:
    views = ViewMaker.views
    ViewMaker.views = lambda self, results, epochs, isolation: views(  # type: ignore[method-assign]
        self, results, [epochs[0]] * len(epochs), isolation
    )


@defect("hostile.what_is_no_message_ends_the_connection")
def passes_over_a_handshake_with_an_id() -> None:
    receive = ClientConnection.receive

    def receive_others(self: Any, data: Any) -> Any:
        # Of a read that is one frame: behind its length and the header of the array, the type and the id.
        kind, number = data[5:6], data[6:7]
        late = self.state is connection.ConnectionState.OPEN and kind in (b"\0", b"\1") and number != b"\0"
        return receive(self, data[4 + int.from_bytes(data[:4], "big") :] if late else data)

    ClientConnection.receive = receive_others  # type: ignore[method-assign]


@defect("handshake.a_server_names_itself_as_it_likes")
def takes_servers_of_short_names_alone() -> None:
    on_handshake = ClientConnection._on_handshake

    def shake(self: Any, message: Any, events: Any) -> None:
        if type(message) is Welcome and len(message.server.encode()) > 255:
            raise connection.RemoteProtocolError("the server's name is long")
        on_handshake(self, message, events)

    ClientConnection._on_handshake = shake  # type: ignore[method-assign]


@defect("values.as_many_entries_as_a_description_may_have_are_listed")
def lists_ten_thousand_entries() -> None:
    jobs = QueryableStateClient.jobs

    class Brief(QueryableStateClient):
        def jobs(self, *args: Any, **kwargs: Any) -> Any:
            return jobs(self, *args, **kwargs)[:10_000]

    PythonDriver.make_client = Brief


@defect("values.more_entries_than_a_description_may_have_end_the_connection")
def takes_descriptions_of_any_length() -> None:
    messages.MAX_ENTRIES = 1 << 20
    ignore_rules_of(messages.Description)


@defect("delivery.every_result_of_a_large_get_is_in_its_place")
def mixes_up_results_late_in_a_large_get() -> None:
    class Mixing(QueryableStateClient):
        def get_many(self, *args: Any, **kwargs: Any) -> Any:
            found = super().get_many(*args, **kwargs)
            if len(found) >= 4000:
                keys = [*found]
                one, other = keys[len(keys) // 2 : len(keys) // 2 + 2]
                found[one], found[other] = found[other], found[one]
            return found

    PythonDriver.make_client = Mixing


@defect("delivery.twenty_thousand_gets_of_one_client_are_answered")
def gives_an_old_value_after_fifteen_thousand() -> None:
    class Tired(QueryableStateClient):
        found: ClassVar[list[Any]] = []

        def get(self, *args: Any, **kwargs: Any) -> Any:
            self.found.append(super().get(*args, **kwargs))
            return self.found[min(len(self.found), 15_000) - 1]

    PythonDriver.make_client = Tired
