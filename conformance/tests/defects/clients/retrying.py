"""Clients that retry or wait in a way that the protocol forbids."""

from __future__ import annotations

from typing import Any

from qstate.client import QueryableStateClient
from qstate.errors import QueryError, Retry
from qstate.runtime.client.operations import RoutedOperation
from qstate.runtime.routing import routed_get as routing
from qstate_conformance.client.python_driver import PythonDriver
from tests.defects.clients.seeds import defect


@defect("retries.no_try_comes_after_the_deadline")
def retries_for_ever() -> None:
    class Stubborn(QueryableStateClient):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    return super().get(*args, **kwargs)
                except QueryError as exc:
                    if exc.retry is Retry.FATAL:
                        raise

    PythonDriver.make_client = Stubborn


@defect("retries.a_fatal_code_is_the_outcome_and_not_tried_again")
def retries_a_fatal_code() -> None:
    routing._RETRY = {**routing._RETRY, 18: Retry.RETRY_HERE}


@defect("retries.a_fatal_code_of_a_key_is_the_outcome_and_not_tried_again")
def retries_a_fatal_code_of_a_key() -> None:
    merge = routing.RoutedGet._merge

    def merge_forbidden(self: Any, part: Any, epochs: Any, results: Any, now: float) -> None:
        merge(self, part, epochs, [12 if result == 18 else result for result in results], now)

    routing.RoutedGet._merge = merge_forbidden  # type: ignore[method-assign]


@defect("retries.an_unknown_code_is_internal")
def retries_codes_that_it_does_not_know() -> None:
    class Hopeful(dict[int, Retry]):
        def get(self, code: int, default: Any = None) -> Any:
            return super().get(code, Retry.RETRY_HERE)

    routing._RETRY = Hopeful(routing._RETRY)


@defect("retries.a_code_that_may_pass_is_tried_again")
def gives_up_on_a_state_that_is_being_restored() -> None:
    routing._RETRY = {**routing._RETRY, 8: Retry.FATAL}


@defect("retries.the_waits_between_tries_grow")
def waits_as_long_each_time() -> None:
    routing.backoff_s = lambda attempt, random: 0.02


@defect("retries.an_overloaded_server_is_left_alone_as_long_as_it_says")
def ignores_retry_after() -> None:
    routing.retry_after_s = lambda details: 0.0


@defect("retries.a_wait_beyond_the_deadline_is_not_shortened")
def comes_back_at_its_deadline_instead_of_later() -> None:
    routing.retry_after_s = lambda details: min(0.2, details.get("retry_after_ms", 0) / 1000)  # type: ignore[operator]


@defect("retries.a_long_wait_is_a_wait")
def waits_a_second_at_most() -> None:
    retry_after_s = routing.retry_after_s
    routing.retry_after_s = lambda details: min(1.0, retry_after_s(details))


@defect("retries.a_long_wait_is_a_wait")
def takes_a_wait_of_more_than_31_bits_for_none() -> None:
    retry_after_s = routing.retry_after_s
    routing.retry_after_s = lambda details: found if (found := retry_after_s(details)) < (1 << 31) / 1000 else 0.0


@defect("retries.details_are_not_depended_on")
def depends_on_a_detail() -> None:
    routing.retry_after_s = lambda details: details["retry_after_ms"] / 1000  # type: ignore[operator]


@defect("deadlines.a_silent_server_does_not_hold_a_request_beyond_its_deadline")
def ignores_the_deadline() -> None:
    class Patient(QueryableStateClient):
        def get(self, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            return super().get(*args, timeout_s=60.0, **kwargs)

    PythonDriver.make_client = Patient


@defect("deadlines.the_deadline_that_is_sent_is_what_is_left")
def sends_the_same_deadline_always() -> None:
    RoutedOperation._ms_left = lambda self, now: 10_000  # type: ignore[method-assign]


@defect("deadlines.the_deadline_of_a_retry_is_what_is_left_by_then")
def sends_the_first_deadline_again() -> None:
    ms_left = RoutedOperation._ms_left
    first: dict[float, int] = {}
    # An operation is known by its deadline, which no other has.
    RoutedOperation._ms_left = lambda self, now: first.setdefault(self.deadline, ms_left(self, now))  # type: ignore[method-assign]


@defect("deadlines.a_deadline_of_weeks_is_a_deadline")
def takes_a_deadline_of_more_than_31_bits_for_none() -> None:
    class Overflowing(QueryableStateClient):
        def get(self, *args: Any, timeout_s: float = 1.0, **kwargs: Any) -> Any:
            return super().get(*args, timeout_s=timeout_s if timeout_s * 1000 < 1 << 31 else 0.01, **kwargs)

    PythonDriver.make_client = Overflowing


@defect("deadlines.a_deadline_of_weeks_is_a_deadline")
def takes_32_bits_of_a_deadline() -> None:
    class Cutting(QueryableStateClient):
        def get(self, *args: Any, timeout_s: float = 1.0, **kwargs: Any) -> Any:
            return super().get(*args, timeout_s=timeout_s % ((1 << 32) / 1000), **kwargs)

    PythonDriver.make_client = Cutting
