"""Scans by both clients, of a real served job: what they visit, of which epoch, and what survives a loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import ConfigError, ScanExpired, TooLarge, UnknownState, WrongKeyType
from qstate.keys import key_group
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.range_requests.scan_views import LAST_PAGE_S, ScanViews
from tests.runtime.client.real_job import DESCRIPTORS, KEYS, MAX_PARALLELISM, Job, MakeClient

NAMES = [str(descriptor.queryable_name) for descriptor in DESCRIPTORS]
SPACES = [None, "window"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def client(make: MakeClient, job: Job, direct: bool | None) -> Iterator[Any]:
    with make(job.proxy.address, direct=direct) as client:
        yield client


def in_order(keys: list[str]) -> list[tuple[str, str | None]]:
    """The keys with their namespaces in the order of a scan: by key group, namespace, and MessagePack's bytes."""
    places = [(key, space) for key in keys for space in SPACES]
    return sorted(places, key=lambda one: (key_group(one[0], MAX_PARALLELISM), one[1] is None, len(one[0]), one[0]))


def open_scans(job: Job) -> list[ScanViews]:
    found = [subtask.registry.scan_views(state_id) for subtask in job.subtasks for state_id in subtask.ids.values()]
    return [views for views in found if views is not None]


@pytest.mark.parametrize("isolation", ["live", "committed"])
@pytest.mark.parametrize("state", NAMES)
def test_a_scan_visits_what_gets_give(client: Any, state: str, isolation: str) -> None:
    found = list(client.scan("job", state, isolation=isolation))
    assert [(entry.key, entry.namespace) for entry in found] == in_order(KEYS)
    for space in SPACES:
        views = client.get_many("job", state, KEYS, space, isolation)
        scanned = {entry.key: entry.view for entry in found if entry.namespace == space}
        assert {key: (view.epoch, repr(view)) for key, view in scanned.items()} == {
            key: (view.epoch, repr(view)) for key, view in views.items()
        }


def test_a_scan_has_few_keys_in_memory_and_goes_on(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    found = [(entry.key, entry.namespace) for entry in client.scan("job", "reducing")]
    assert found == in_order(KEYS)


def test_a_selection_visits_its_keys_alone(client: Any) -> None:
    def keys(**options: Any) -> list[Any]:
        return [(entry.key, entry.namespace) for entry in client.scan("job", "reducing", values=False, **options)]

    some = [key for key in KEYS if key.startswith("key-1")]
    assert keys(prefix="key-1") == in_order(some)
    assert keys(prefix=("key-1",)) == in_order(["key-1"])
    assert keys(prefix="key-", namespace=None) == [place for place in in_order(KEYS) if place[1] is None]
    assert keys(namespace="window") == [place for place in in_order(KEYS) if place[1] == "window"]
    assert keys(namespace="other") == []
    in_range = [key for key in KEYS if 3 <= key_group(key, MAX_PARALLELISM) < 11]
    assert keys(key_groups=(3, 11)) == keys(key_groups=range(3, 11)) == in_order(in_range)
    assert keys(limit=7) == in_order(KEYS)[:7]
    assert client.count("job", "reducing") == 2 * len(KEYS)
    assert client.count("job", "reducing", "key-1", namespace=None) == len(some)
    assert client.namespaces("job", "reducing", "key-1") == ["window", None]
    assert client.namespaces("job", "reducing", "no key") == []


def test_a_scan_goes_on_from_the_cursor_of_another(client: Any) -> None:
    expected = in_order(KEYS)
    for taken in (0, 1, 57, len(expected)):
        scan = client.scan("job", "reducing", values=False)
        first = [next(scan) for _ in range(taken)]
        rest = list(client.scan("job", "reducing", values=False, cursor=scan.cursor))
        assert [(entry.key, entry.namespace) for entry in (*first, *rest)] == expected
        scan.close()


def test_a_committed_scan_is_of_one_epoch_of_each_owner(client: Any, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    scan = client.scan("job", "reducing", isolation="committed", namespace=None)
    found = [next(scan)]
    job.subtasks[0].commit(1)
    job.subtasks[1].commit(1)
    found += list(scan)
    values = {entry.key: (entry.view.epoch, entry.view.get()) for entry in found}
    for number, key in enumerate(KEYS):
        early = key_group(key, MAX_PARALLELISM) in job.subtasks[0].groups
        assert values[key] == ((0, number) if early else (1, number + 100))


def test_a_committed_scan_stays_in_its_epoch_when_its_proxy_is_lost(
    make: MakeClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owners are still there, and so is what they keep for the scan."""
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    with make(job.proxy.address, direct=False) as client:
        scan = client.scan("job", "reducing", isolation="committed")
        found = [next(scan) for _ in range(150)]
        owners = {key_group(entry.key, MAX_PARALLELISM) // 8 for entry in found}
        port = job.proxy.address[1]
        job.proxy.shutdown(0.0)
        job.subtasks[0].commit(1)
        job.proxy = ClientProxy(EndpointOptions(ports=str(port)))
        job.proxy.set_location_oracle("job", job)
        job.proxy.start()
        found += list(scan)
    assert [(entry.key, entry.namespace) for entry in found] == in_order(KEYS)
    assert owners == {0} and {entry.view.epoch for entry in found} == {0}


def test_a_scan_goes_on_at_a_new_owner(client: Any, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    scan = client.scan("job", "reducing", isolation="committed")
    found = [next(scan) for _ in range(30)]
    for subtask in job.subtasks:
        subtask.register()
    found += [next(scan) for _ in range(100)]
    for subtask in job.subtasks:
        subtask.register()
    found += list(scan)
    assert [(entry.key, entry.namespace) for entry in found] == in_order(KEYS)


def test_a_scan_that_rests_too_long_has_expired(client: Any, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    scan = client.scan("job", "reducing", isolation="committed")
    first = [next(scan)]
    for views in open_scans(job):
        for view_id in list(views._views):
            views.drop(view_id)
    with pytest.raises(ScanExpired):
        first.extend(scan)
    rest = list(client.scan("job", "reducing", isolation="committed", cursor=scan.cursor))
    assert [(entry.key, entry.namespace) for entry in (*first, *rest)] == in_order(KEYS)


def test_a_closed_scan_leaves_nothing_at_the_server(client: Any, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.range_requests.scans.PAGE_BYTES", 600)
    for _ in range(100):
        with client.scan("job", "reducing", isolation="committed") as scan:
            next(scan)
        assert list(scan) == []
    assert not any(map(len, open_scans(job)))
    list(client.scan("job", "reducing", isolation="committed", limit=50))
    list(client.scan("job", "reducing", isolation="committed"))
    for views in open_scans(job):  # a last page may be asked for again
        views._clock = lambda: time.monotonic() + LAST_PAGE_S
        views.expire()
    assert not any(map(len, open_scans(job)))


def test_a_value_that_is_too_large_fails_in_its_place(make: MakeClient, job: Job, direct: bool | None) -> None:
    subtask = job.subtasks[key_group("key-7", MAX_PARALLELISM) // 8]
    subtask.backend.table(DESCRIPTORS[1]).put("key-7", [["x" * 5000]])
    subtask.backend.publish()
    with make(job.proxy.address, direct=direct, max_frame=4096) as client:
        scan = client.scan("job", "list", namespace=None)
        found, failed = [], 0
        while True:
            try:
                found.append(next(scan).key)
            except TooLarge:
                failed += 1
            except StopIteration:
                break
        assert failed == 1
        assert found == [key for key, space in in_order(KEYS) if space is None and key != "key-7"]


def test_what_no_scan_can_have_is_refused(client: Any) -> None:
    for options in ({"prefix": []}, {"prefix": ()}, {"limit": 0}, {"key_groups": (3, 3)}, {"cursor": b"x"}):
        with pytest.raises(ConfigError):
            list(client.scan("job", "reducing", **options))
    for prefix in (b"key", ("key-1", 2), (1,)):
        with pytest.raises(WrongKeyType):
            list(client.scan("job", "reducing", prefix))
    with pytest.raises(UnknownState):
        list(client.scan("job", "no state"))
