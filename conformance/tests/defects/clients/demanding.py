"""Clients that demand something else than they were told, or give up a demand."""

from __future__ import annotations

from typing import Any

from qstate.client import QueryableStateClient
from qstate.errors import EpochNotReached, Retry, TooStale
from qstate.runtime import routing
from qstate.runtime.errand import NO_DEMANDS, GetErrand
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
    request = GetErrand.request

    def ask(self: Any, *args: Any) -> Any:
        asked = request(self, *args)
        if type(asked).__name__ == "Get":
            self._options = NO_DEMANDS
        return asked

    GetErrand.request = ask  # type: ignore[method-assign]


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
