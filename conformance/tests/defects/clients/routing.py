"""Clients that ask the wrong owner, or do not notice that a state has moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qstate.keys import KeyGroupRange
from qstate.protocol import messages
from qstate.runtime.client.operations import RoutedOperation
from qstate.runtime.client.state_cache import StateCache, Way
from qstate.runtime.client.sync_transport import SyncLink
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.routing.routed_get import RoutedGet
from qstate_conformance.key_groups import group_of
from tests.defects.clients.seeds import defect, ignore_rules_of


@defect("routing.the_location_is_kept_until_an_owner_says_otherwise")
def locates_for_every_get() -> None:
    StateCache.find = lambda self, job, state: None  # type: ignore[method-assign]


@defect("delivery.names_that_run_together_are_kept_apart")
def knows_states_by_their_names_put_together() -> None:
    _knows_states_by("".join)


@defect("delivery.names_that_run_together_are_kept_apart")
def knows_states_by_their_names_with_a_slash_between() -> None:
    _knows_states_by("/".join)


def _knows_states_by(join: Callable[[tuple[str, str]], str]) -> None:
    class Joined(dict[Any, Any]):
        def get(self, names: Any, default: Any = None) -> Any:
            return super().get(join(names), default)

        def __setitem__(self, names: Any, known: Any) -> None:
            super().__setitem__(join(names), known)

        def __delitem__(self, names: Any) -> None:
            super().__delitem__(join(names))

    make = StateCache.__init__

    def make_joined(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self._known = Joined()

    StateCache.__init__ = make_joined  # type: ignore[method-assign]


@defect("routing.a_state_that_moved_is_looked_up_again")
def never_locates_again() -> None:
    RoutedOperation._is_stale = lambda self, known, stale: False  # type: ignore[method-assign]


@defect("routing.the_golden_keys_have_their_groups")
def takes_the_hash_without_its_sign() -> None:
    def unsigned(key: Any, max_parallelism: int) -> int:
        # With a power of two it makes no difference.
        return (group_of(key, 1 << 64) % max_parallelism) if max_parallelism else 0

    _owners_by(unsigned)


@defect("routing.each_key_is_asked_of_the_owner_of_its_group")
def hashes_the_first_column_alone() -> None:
    _owners_by(lambda key, max_parallelism: group_of(key[0] if isinstance(key, tuple) else key, max_parallelism))


def _owners_by(
    group_of: Callable[[Any, int], int], in_a_gap: Callable[[LocationTable], Any] = lambda table: None
) -> None:
    def split(self: LocationTable, keys: Any) -> Any:
        shares: dict[Any, list[int]] = {}
        for index, key in enumerate(keys):
            group = group_of(key, self.max_parallelism)
            owner = next((owner for owner in self.owners if group in owner.key_groups), None) or in_a_gap(self)
            shares.setdefault(owner, []).append(index)
        return list(shares.items())

    LocationTable.split = split  # type: ignore[method-assign]


@defect("routing.a_key_without_an_owner_is_looked_for_again_later")
def asks_the_neighbour_about_a_gap() -> None:
    _owners_by(group_of, lambda table: table.owners[0] if table.owners else None)


@defect("routing.an_owner_is_greeted_like_a_proxy")
def keeps_its_token_from_owners() -> None:
    make = SyncLink.__init__

    def make_with(self: Any, links: Any, host: str, port: int, settings: Any) -> None:
        is_owner = (host, port) not in links.states.proxies
        make(self, links, host, port, replace(settings, token=None) if is_owner else settings)

    SyncLink.__init__ = make_with  # type: ignore[method-assign]


@defect("reached.no_get_waits_for_an_owner_that_cannot_be_reached")
def waits_for_owners() -> None:
    _asks_always(Way.OWNERS)


@defect("reached.an_owner_is_asked_once_it_is_reached")
def asks_the_proxy_whatever_it_has_reached() -> None:
    _asks_always(Way.PROXY)


def _asks_always(way: Way) -> None:
    make = StateCache.__init__

    def make_other(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **{**kwargs, "way": way})

    StateCache.__init__ = make_other  # type: ignore[method-assign]


@defect("reached.the_proxy_is_asked_while_an_owner_is_gone")
def trusts_an_owner_that_is_gone() -> None:
    StateCache.ended = lambda self, address, now: None  # type: ignore[method-assign]


@defect("reached.each_key_goes_to_its_owner_or_to_the_proxy")
def asks_the_owner_that_it_has_reached_for_all_keys() -> None:
    table = StateCache._table

    def of_one_owner(self: Any, location: LocationTable) -> LocationTable:
        found = table(self, location)
        one = next((owner for owner in found.owners if owner.state_id), None)
        groups = KeyGroupRange(0, found.max_parallelism)
        return found if one is None else replace(found, owners=(replace(one, key_groups=groups),))

    StateCache._table = of_one_owner  # type: ignore[method-assign]


@defect("connections.a_value_is_read_by_the_description_whose_fingerprint_it_has")
def reads_any_value_by_the_description_that_it_knows() -> None:
    on_values = RoutedGet.on_values

    def take(self: Any, part: int, epochs: Any, results: Any, fingerprint: str, now: float) -> Any:
        return on_values(self, part, epochs, results, self._fingerprint, now)

    RoutedGet.on_values = take  # type: ignore[method-assign]


@defect("routing.a_location_that_breaks_its_table_ends_the_connection")
def takes_any_owners() -> None:
    ignore_rules_of(messages.Location)
