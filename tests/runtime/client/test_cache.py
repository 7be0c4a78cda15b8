"""Laws of the cache: an answer of it is one that a committed get could have had within the bound, or there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.expiry import wall_clock_ms
from qstate.client import ClientCache, QueryableStateClient
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from qstate.errors import ClosedError, ConfigError, QueryError, WrongKeyType
from qstate.runtime.client.caching.kept_values import ENTRY_BYTES, KeptValues
from qstate.values.ttl import StateTtl
from tests.runtime.client.real_job import MakeClient
from tests.runtime.client.written_job import JOB, STATE, VALUES, WrittenJob, with_ttl
from tests.runtime.job.running_job import until

#: Long enough for a machine that has other things to do; and one that passes soon.
BOUND_S, SHORT_S = 30.0, 0.5


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WrittenJob]:
    job = WrittenJob(tmp_path)
    yield job
    job.close()


@pytest.fixture
def caching(job: WrittenJob, make: MakeClient, direct: bool | None) -> Iterator[Any]:
    """A client with a cache, of any way to ask."""
    with make(job.proxy.address, direct=direct, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
        yield client


@pytest.fixture(params=[None], ids=["reached"])
def direct(request: pytest.FixtureRequest) -> bool | None:
    found: bool | None = request.param
    return found


def statistics(client: Any) -> Any:
    found = client.cache_statistics
    return getattr(client, "client", client).cache_statistics() if found is not None else None


def get(client: Any, key: str = "a", **demands: Any) -> Any:
    view = client.get(JOB, STATE, key, isolation="committed", **demands)
    return None if view is None else view.contents()


def hit(client: Any, key: str = "a", **demands: Any) -> Any:
    """The first answer of the cache for this key."""
    found: list[Any] = []

    def answered() -> bool:
        before = statistics(client).hits
        found[:] = [get(client, key, **demands)]
        return bool(statistics(client).hits > before)

    until(answered, f"the cache answers {key}")
    return found[0]


def misses(client: Any, key: str = "a", **demands: Any) -> bool:
    """Whether a get is sent to a server."""
    before = statistics(client)
    get(client, key, **demands)
    return bool(statistics(client).hits == before.hits)


def test_a_held_value_is_answered_without_a_server(job: WrittenJob, caching: Any) -> None:
    epoch = job.commit({"a": 1, "b": 2})
    assert (hit(caching, "a"), hit(caching, "b"), hit(caching, "c")) == (1, 2, None)
    job.lose()
    job.proxy.shutdown(0.1)
    view = caching.get(JOB, STATE, "a", isolation="committed")
    assert (view.value(), view.epoch, view.isolation) == (1, epoch, "committed")
    found = caching.get_many(JOB, STATE, ["a", "b", "c"], isolation="committed")
    assert {key: view and view.value() for key, view in found.items()} == {"a": 1, "b": 2, "c": None}


def test_a_get_of_many_keys_asks_for_those_that_are_not_held(job: WrittenJob, caching: Any) -> None:
    job.commit({"a": 1, "b": 2, "c": 3})
    hit(caching, "b")
    before = statistics(caching)
    found = caching.get_many(JOB, STATE, ["a", "b", "c"], isolation="committed")
    assert [view.value() for view in found.values()] == [1, 2, 3]
    after = statistics(caching)
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 2)


@pytest.mark.parametrize("direct", [None, False, True])
def test_a_commit_is_seen_by_a_cache_that_is_asked(job: WrittenJob, caching: Any) -> None:
    """Values, deletions and first values, while the bound would allow the old ones for much longer."""
    job.commit({"a": 1, "b": 2})
    for key in "abc":
        hit(caching, key)
    epoch = job.commit({"a": 10, "b": None, "c": 3})
    until(lambda: (get(caching, "a"), get(caching, "b"), get(caching, "c")) == (10, None, 3), "the commit is seen")
    assert (hit(caching, "a"), hit(caching, "b"), hit(caching, "c")) == (10, None, 3)
    assert caching.get(JOB, STATE, "a", isolation="committed").epoch == epoch


def test_a_get_that_demands_more_is_sent(job: WrittenJob, caching: Any) -> None:
    epoch = job.commit({"a": 1})
    hit(caching)
    assert not misses(caching, min_epoch=epoch)
    job.lose()
    with pytest.raises(QueryError):
        get(caching, min_epoch=epoch + 1, timeout_s=0.2)
    with pytest.raises(QueryError):
        get(caching, max_staleness_s=0.0, timeout_s=0.2)
    with pytest.raises(QueryError):
        caching.get(JOB, STATE, "a", isolation="live", timeout_s=0.2)
    assert get(caching) == 1


def test_without_news_the_cache_stops_to_answer_when_the_bound_has_passed(job: WrittenJob, make: MakeClient) -> None:
    job.commit({"a": 1})
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=SHORT_S)) as client:
        hit(client)
        job.lose()
        lost_at = time.monotonic()
        answered_at = lost_at
        with pytest.raises(QueryError):
            while answered_at < lost_at + 10 * SHORT_S:
                assert get(client, timeout_s=0.1) == 1
                answered_at = time.monotonic()
        assert answered_at - lost_at <= SHORT_S + 0.1
        job.recover()
        assert hit(client) == 1, "it answers again when there is news"


def test_owners_that_are_replaced_lose_nothing(job: WrittenJob, caching: Any) -> None:
    job.commit({"a": 1, "b": 2})
    hit(caching, "a"), hit(caching, "b")
    job.lose()
    job.recover()
    job.commit({"a": 10})
    until(lambda: get(caching, timeout_s=30.0) == 10, "the commit is seen")
    assert (hit(caching, "a"), hit(caching, "b")) == (10, 2)


def test_changes_that_are_not_stored_any_more_empty_the_cache(job: WrittenJob, make: MakeClient) -> None:
    job.commit({"a": 1})
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=SHORT_S)) as client:
        hit(client)
        for part in job.parts:
            part.lose()
        for number in range(5):
            job.commit({"a": 10 + number})
        job.compact()
        job.recover()
        until(lambda: get(client, timeout_s=30.0) == 14, "the last commit is seen")
        assert hit(client) == 14


def test_another_life_of_the_job_with_fewer_epochs_is_not_mixed_with_the_first(
    job: WrittenJob, make: MakeClient
) -> None:
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=SHORT_S)) as client:
        for number in range(5):
            job.commit({"a": number, "b": number})
        hit(client, "a"), hit(client, "b")
        job.begin()
        job.commit({"a": 100})
        _until_answered(client, [100, None])
        for _ in range(8):  # past the epochs of the first life
            job.commit({"c": 1})
        assert (hit(client, "a"), hit(client, "b")) == (100, None)


def test_another_life_of_the_job_that_has_got_as_far_is_not_mixed_with_the_first(
    job: WrittenJob, make: MakeClient
) -> None:
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=SHORT_S)) as client:
        job.commit({"a": 1, "b": 1})
        hit(client, "a"), hit(client, "b")
        job.begin()
        for changes in ({"a": 100}, {}, {}):
            job.commit(changes)
        began_at = time.monotonic()
        # Other keys keep the polls going, so that the servers are not asked for these two.
        others = [f"other {number}" for number in range(8)]
        until(
            lambda: [hit(client, key) for key in others] == [None] * 8 and time.monotonic() > began_at + 2 * SHORT_S,
            "the cache answers other keys, and the bound has passed",
        )
        assert (get(client, "a"), get(client, "b")) == (100, None)


def test_an_answer_of_an_earlier_epoch_than_the_changes_is_not_held(job: WrittenJob, caching: Any) -> None:
    """The change after it has come already, when nothing was held."""
    job.commit({"a": 1})
    hit(caching, "b")
    job.commit({"a": 2}, shown=False)
    until(lambda: caching.get(JOB, STATE, "b", isolation="committed") is None and _knows(caching, 2), "it knows")
    assert all(misses(caching, "a") for _ in range(20))


def _knows(client: Any, epochs: int) -> bool:
    """Whether changes of so many epochs have come."""
    ((following,),) = [getattr(client, "client", client)._cache._followed.values()]
    return all((one.epoch or 0) >= epochs for one in following._ranges)


def _until_answered(client: Any, wanted: list[Any]) -> None:
    """Until the cache answers so. Within the bound it may have answered otherwise, from then on it must not."""
    until(lambda: _answers(client) == wanted, "the servers answer")
    seen_at = time.monotonic()
    until(lambda: time.monotonic() > seen_at + SHORT_S, "the bound has passed")
    assert [hit(client, key) for key in "ab"] == wanted


def _answers(client: Any) -> list[Any]:
    try:
        return [get(client, key, timeout_s=5.0) for key in "ab"]
    except QueryError:
        return []


def test_a_state_with_another_description_is_read_by_it(job: WrittenJob, make: MakeClient) -> None:
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=SHORT_S)) as client:
        job.commit({"a": 7})
        hit(client)
        job.begin(descriptor=ListStateDescriptor("t", int).queryable(STATE))
        job.commit({"a": [1, 2]})
        _until_answered(client, [[1, 2], None])


def test_values_that_expire_are_not_held(tmp_path: Path, make: MakeClient) -> None:
    job = WrittenJob(tmp_path, descriptor=with_ttl(VALUES, StateTtl(timedelta(hours=1))))
    job.commit({"a": lambda table, key: table.put(key, (wall_clock_ms(), 1))})
    try:
        with make(job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
            assert client.states(JOB)[0]["ttl_ms"] == 3_600_000
            for _ in range(5):
                assert misses(client) and statistics(client).entries == 0
    finally:
        job.close()


@pytest.mark.parametrize(
    ("descriptor", "first", "change", "then"),
    [
        (
            MapStateDescriptor("t", int).queryable(STATE),
            {"x": 1, "y": 2},
            lambda table, key: table.map_put(key, "x", 5),
            {"x": 5, "y": 2},
        ),
        (ListStateDescriptor("t", int).queryable(STATE), [1], lambda table, key: table.list_add(key, [2]), [1, 2]),
    ],
    ids=["map", "list"],
)
def test_a_change_of_a_part_of_a_value_is_seen(
    tmp_path: Path, descriptor: StateDescriptor, first: Any, change: Callable[..., None], then: Any
) -> None:
    job = WrittenJob(tmp_path, descriptor=descriptor)
    try:
        with QueryableStateClient(*job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
            job.commit({"a": first})
            assert hit(client) == first
            job.commit({"a": change})
            until(lambda: get(client) == then, "the change is seen")
            assert hit(client) == then
    finally:
        job.close()


def test_a_node_that_may_be_behind_proves_as_much_less(job: WrittenJob, make: MakeClient) -> None:
    """A standby's changes say how old they may be; without knowing, nothing is answered from them."""
    began = time.monotonic()
    job.commit({"a": 1})
    job.be_behind(lambda: began)
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
        assert hit(client) == 1
    job.be_behind(lambda: time.monotonic() - 2 * BOUND_S)
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
        assert all(misses(client) for _ in range(20))
    job.be_behind(lambda: -math.inf)
    with make(job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
        assert all(misses(client) for _ in range(20))


def test_what_is_no_key_fails_as_without_a_cache(job: WrittenJob, caching: Any) -> None:
    job.commit({"a": 1})
    hit(caching)
    for wrong in (1, 1.0, True, None, ("a", "b"), "\ud800", ["a"]):
        with pytest.raises((WrongKeyType, TypeError)):
            get(caching, wrong, timeout_s=2.0)  # type: ignore[arg-type]
    assert hit(caching) == 1


def test_a_closed_client_answers_nothing(job: WrittenJob) -> None:
    job.commit({"a": 1})
    client = QueryableStateClient(*job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S))
    hit(client)
    client.close()
    with pytest.raises(ClosedError):
        get(client)


def test_settings_are_checked(job: WrittenJob) -> None:
    wrong: list[dict[str, Any]] = [
        {"max_staleness_s": 0},
        {"max_staleness_s": math.inf},
        {"most_entries": 0},
        {"most_bytes": 1.5},
    ]
    for settings in wrong:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            ClientCache(**settings)
    with pytest.raises(ConfigError, match="ClientCache"):
        QueryableStateClient(*job.proxy.address, cache=True)  # type: ignore[arg-type]
    with QueryableStateClient(*job.proxy.address) as client, pytest.raises(ConfigError, match="cache="):
        client.cache_statistics()


def test_what_is_held_is_bounded_and_what_was_used_stays() -> None:
    values = KeptValues(ClientCache(most_entries=3, most_bytes=4 * ENTRY_BYTES))
    for place in "abc":
        values.put(place, b"x", 0)
    assert values.used("a") is not None
    values.put("d", b"x", 1)
    assert [place for place in "abcd" if values.find(place)] == ["a", "c", "d"]
    values.put("e", b"x" * (2 * ENTRY_BYTES), 1)
    assert [place for place in "acde" if values.find(place)] == ["e"]
    values.put("f", b"x" * (4 * ENTRY_BYTES), 1)
    assert values.find("f") is None and values.bytes == 3 * ENTRY_BYTES
    values.put("e", None, 2)
    values.drop("e")
    assert (len(values), values.bytes) == (0, 0)
