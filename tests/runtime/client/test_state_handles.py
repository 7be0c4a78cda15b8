"""The handle of one state: it reads what the client reads, for both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient, ScannedEntry
from qstate.errors import ConfigError, UnknownState
from tests.runtime.client.real_job import KEYS, Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def client(job: Job) -> Iterator[QueryableStateClient]:
    with QueryableStateClient(*job.proxy.address) as client:
        yield client


def test_a_handle_reads_what_the_client_reads(client: QueryableStateClient) -> None:
    handle = client.state("job", "value")
    assert (handle.job, handle.name, handle.isolation) == ("job", "value", "live")
    assert handle["key-1"] == handle.get("key-1") == client.get("job", "value", "key-1")
    assert handle.get_many(KEYS[:3]) == client.get_many("job", "value", KEYS[:3])
    assert list(handle.scan("key-19")) == list(client.scan("job", "value", "key-19"))
    assert handle.count("key-19", namespace=None) == client.count("job", "value", "key-19", namespace=None) == 11
    assert handle.namespaces("key-1") == client.namespaces("job", "value", "key-1")
    assert handle.get_large("key-1") == client.get("job", "value", "key-1")


def test_a_handle_reads_parts_in_its_isolation(client: QueryableStateClient) -> None:
    maps, lists = client.state("job", "map", isolation="committed"), client.state("job", "list")
    whole = client.get("job", "map", "key-1", isolation="committed")
    assert maps.get_entries("key-1", ["a", ("b", 1)]) == maps.get_page("key-1", limit=2).view == whole
    assert (maps.get_size("key-1"), maps.get_page("key-1", limit=2).after) == (2, None)
    assert lists.get_slice("key-1", start=1) == client.get_slice("job", "list", "key-1", start=1)


def test_the_asyncio_handle_reads_what_the_client_reads(job: Job) -> None:
    async def read() -> None:
        async with await AsyncQueryableStateClient.connect(*job.proxy.address) as client:
            handle = client.state("job", "value")
            assert await handle.get("key-1") == await client.get("job", "value", "key-1")
            assert await handle.get_many(KEYS[:3]) == await client.get_many("job", "value", KEYS[:3])
            assert [one.key async for one in handle.scan(limit=5)] == [
                one.key async for one in client.scan("job", "value", limit=5)
            ]
            assert await handle.count() == await client.count("job", "value")
            assert await handle.namespaces("key-1") == await client.namespaces("job", "value", "key-1")

    asyncio.run(read())


def test_a_key_without_a_value_is_none_and_a_key_error_in_brackets(client: QueryableStateClient) -> None:
    handle = client.state("job", "value")
    assert handle.get("nobody") is None
    with pytest.raises(KeyError, match="nobody"):
        handle["nobody"]


def test_a_handle_reads_with_its_isolation(client: QueryableStateClient) -> None:
    committed = client.state("job", "value", isolation="committed")
    assert committed["key-1"].isolation == "committed"
    assert next(iter(committed.scan(limit=1))).view.isolation == "committed"


def test_a_handle_does_not_iterate_by_numbers(client: QueryableStateClient) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(client.state("job", "value"))  # type: ignore[call-overload]


def test_a_wrong_handle_fails_at_once_and_an_unknown_state_when_it_is_read(client: QueryableStateClient) -> None:
    for job, name, isolation in ((1, "value", "live"), ("job", "", "live"), ("job", "value", "dirty")):
        with pytest.raises(ConfigError):
            client.state(job, name, isolation=isolation)  # type: ignore[arg-type]
    with pytest.raises(UnknownState):
        client.state("job", "nothing").get("key-1")


def test_a_scanned_entry_is_a_tuple(client: QueryableStateClient) -> None:
    entry = next(iter(client.state("job", "value").scan()))
    key, namespace, view = entry
    assert (entry.key, entry.namespace, entry.view) == (key, namespace, view)
    assert isinstance(entry, ScannedEntry)
    assert repr(entry).startswith("ScannedEntry(key=")
