"""Clients whose subscriptions lose changes, give them twice, or give half an epoch."""

from __future__ import annotations

from typing import Any

from qstate.protocol.messages import Changes
from qstate.runtime.client import subscribing
from qstate.runtime.client.subscribing import Subscribing
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from tests.defects.clients.seeds import defect


@defect("subscriptions.an_epoch_is_given_when_all_of_it_has_come")
def gives_half_an_epoch() -> None:
    take = Subscribing._take_changes

    def taken(self: Subscribing, one: Any, answer: Changes, known: Any) -> None:
        take(self, one, answer, known)
        if one.pending:
            self._give(one.epoch, one.pending)
            one.pending = []

    Subscribing._take_changes = taken  # type: ignore[method-assign]


@defect("subscriptions.an_epoch_is_given_when_all_of_it_has_come", PythonAsyncDriver)
def forgets_what_came_of_an_epoch_before() -> None:
    take = Subscribing._take_changes

    def taken(self: Subscribing, one: Any, answer: Changes, known: Any) -> None:
        one.pending = []
        take(self, one, answer, known)

    Subscribing._take_changes = taken  # type: ignore[method-assign]


@defect("subscriptions.an_epoch_begins_again_when_its_owner_has_fewer_key_groups")
def keeps_a_place_of_another_owner() -> None:
    def divide(self: Subscribing, one: Any, stop: int) -> None:
        rest = subscribing._Range(stop, one.stop, one.epoch, one.position, one.pending)
        self._ranges.insert(self._ranges.index(one) + 1, rest)
        one.stop = stop
        one.position = b""

    Subscribing._divide = divide  # type: ignore[method-assign]


@defect("subscriptions.owners_of_parts_are_followed_each_at_its_own_place")
def takes_an_answer_about_a_part_for_one_about_all() -> None:
    Subscribing._divide = lambda self, one, stop: None  # type: ignore[method-assign]


@defect("subscriptions.changes_of_another_history_do_not_come_next")
def takes_changes_of_another_history() -> None:
    Subscribing._check_history = lambda self, one, changes: None  # type: ignore[method-assign]
