"""Clients that demand something else than their caller, or give up a demand."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from qstate.client import QueryableStateClient
from qstate.errors import EpochNotReached, Retry, TooStale
from qstate.protocol import connection
from qstate.runtime.client.operations import GetOperation
from qstate.runtime.client.query import NO_OPTIONS
from qstate.runtime.routing import routed_get as routing
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from qstate_conformance.client.python_driver import PythonDriver
from tests.defects.clients.seeds import defect


@defect("demands.a_get_says_what_is_demanded")
def forgets_the_demands() -> None:
    class Forgetful(QueryableStateClient):
        def get(self, *args: Any, min_epoch: Any = None, max_staleness_s: Any = None, **kwargs: Any) -> Any:
            return super().get(*args, **kwargs)

    PythonDriver.make_client = Forgetful


@defect("demands.a_demand_that_is_not_met_yet_is_made_again_as_it_was")
def demands_nothing_when_it_tries_again() -> None:
    request = GetOperation.request

    def ask(self: Any, *args: Any) -> Any:
        asked = request(self, *args)
        if type(asked).__name__ == "Get":
            self._query = replace(self._query, options=NO_OPTIONS)
        return asked

    GetOperation.request = ask  # type: ignore[method-assign]


@defect("demands.keys_whose_demand_is_not_met_are_asked_for_again_beside_others")
def gives_up_keys_whose_demand_is_not_met() -> None:
    routing._RETRY = {**routing._RETRY, 21: Retry.FATAL}


@defect("demands.a_demand_that_is_never_met_fails_by_the_deadline")
def waits_for_an_epoch_for_ever() -> None:
    class Stubborn(QueryableStateClient):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    return super().get(*args, **kwargs)
                except (EpochNotReached, TooStale):
                    continue

    PythonDriver.make_client = Stubborn


@defect("demands.a_demand_that_is_not_met_yet_is_made_again_as_it_was")
def gives_up_before_the_first_commit() -> None:
    routing._RETRY = {**routing._RETRY, 23: Retry.FATAL}


@defect("demands.an_answer_of_an_earlier_epoch_than_demanded_ends_the_connection")
def believes_that_demands_are_met() -> None:
    _demands_nothing_of_answers()


@defect("demands.an_answer_of_an_earlier_epoch_than_demanded_ends_the_connection", PythonAsyncDriver)
def believes_that_demands_are_met_in_the_asyncio_client() -> None:
    _demands_nothing_of_answers()


def _demands_nothing_of_answers() -> None:
    check = connection.check_answer
    connection.check_answer = lambda request, answer: check(
        request._replace(options={}) if hasattr(request, "options") else request, answer
    )


@defect("demands.one_result_of_an_earlier_epoch_spoils_an_answer")
def looks_at_the_first_epoch_alone() -> None:
    check = connection.check_answer

    def check_first(request: Any, answer: Any) -> None:
        if hasattr(answer, "epochs"):
            answer = answer._replace(epochs=answer.epochs[:1] * len(answer.epochs))
        check(request, answer)

    connection.check_answer = check_first
