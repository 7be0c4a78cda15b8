"""Laws of tables with ten thousand owners: a request costs time for its keys, not for all owners of the state.

The times are ratios of two measurements of one process, and the fastest of several, so that a busy machine changes
little. Work for each owner would exceed the bounds more than ten times over.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from random import Random
from typing import Any

from qstate.keys import KeyGroupRange
from qstate.runtime.client.proxies import Proxies
from qstate.runtime.client.state_cache import MOST_OWNERS, StateCache, Way
from qstate.runtime.routing.location import LocationTable, Owner
from tests.runtime.client.peer import VALUE_STATE

GROUPS = 32_768
MANY = 10_000
PROXY = ("127.0.0.1", 9069)


def table(owners: int) -> LocationTable:
    return LocationTable("job", VALUE_STATE, GROUPS, tuple(owner(number, owners) for number in range(owners)))


def owner(number: int, owners: int) -> Owner:
    groups = KeyGroupRange.of_subtask(number, owners, GROUPS)
    return Owner(groups, f"10.0.{number >> 8}.{number & 255}", 9067, number.to_bytes(16, "big"))


def seconds(work: Callable[[], Any], repetitions: int = 50) -> float:
    """The shortest of several times."""
    found = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def test_a_get_of_one_key_costs_as_much_among_ten_thousand_owners_as_among_two() -> None:
    few, many = table(2), table(MANY)
    assert seconds(lambda: many.split(["JFK"])) < 20 * seconds(lambda: few.split(["JFK"]))


def test_a_page_of_a_scan_costs_as_much_among_ten_thousand_owners_as_among_two() -> None:
    few, many = table(2), table(MANY)
    assert seconds(lambda: many.of_groups().split([GROUPS - 1])) < 20 * seconds(
        lambda: few.of_groups().split([GROUPS - 1])
    )


def test_requests_about_key_groups_go_to_their_owners() -> None:
    many = table(MANY)
    groups = many.of_groups()
    for number in (0, 1, MANY // 2, MANY - 1):
        wanted = many.owners[number]
        assert groups.split([wanted.key_groups.start]) == [(wanted, [0])]
    assert groups.split([GROUPS]) == [(many.owners[-1], [0])]


def test_each_owner_that_a_client_reaches_costs_little() -> None:
    cache = StateCache(Proxies([PROXY], Random(1)), way=Way.REACHED, serializers={})
    location = table(MANY).message(1)
    learning = seconds(lambda: cache.learn("job", "state", location, 0.0), 5)
    known = cache.find("job", "state")
    assert known is not None
    unreached = cache.unreached(known, 0.0)
    assert len(unreached) == MOST_OWNERS
    began = time.perf_counter()
    for address in unreached:
        cache.reached(address)
    assert time.perf_counter() - began < 30 * learning


def test_keys_of_owners_that_were_not_reached_go_to_the_proxy_in_one_request() -> None:
    cache = StateCache(Proxies([PROXY], Random(1)), way=Way.REACHED, serializers={})
    located = table(4)
    cache.learn("job", "state", located.message(1), 0.0)
    keys = [f"key-{number}" for number in range(100)]
    home = {key: found for found, positions in located.split(keys) for key in (keys[at] for at in positions)}
    reached: list[Any] = []
    for one in (None, *located.owners):
        if one is not None:
            cache.reached(one.address)
            reached.append(one)
        known = cache.find("job", "state")
        assert known is not None
        asked = {keys[at]: found for found, positions in known.table.split(keys) for at in positions}
        assert all(found == home[key] for key, found in asked.items() if home[key] in reached)
        others = {found for key, found in asked.items() if home[key] not in reached}
        assert len(others) <= 1
        assert all(found is not None and found.address == PROXY and not found.state_id for found in others)


def test_a_table_comes_back_from_its_pickle_with_whom_to_ask_for_the_rest() -> None:
    proxy = Owner(KeyGroupRange(0, 128), *PROXY, b"")
    alone = LocationTable("job", VALUE_STATE, 128, (), others=proxy)
    assert alone.sole_owner == proxy
    assert pickle.loads(pickle.dumps(alone)) == alone
