"""The byte-store adapter's cache: how long writes may wait in it, and how much it may hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import BackendContext, ByteStoreBackend, Isolation, StateBackend
from qstate.backends.byte_stores.table import ByteTable
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode
from tests.backends.factories import ALL_GROUPS, MAX_PARALLELISM, MemoryBackend
from tests.backends.states import LIST, MAP, VALUE, query


def open_memory(directory: Path, cache_entries: int, flush_interval_s: float) -> StateBackend:
    options = {"cache_entries": cache_entries, "flush_interval_s": flush_interval_s}
    return MemoryBackend(BackendContext(ALL_GROUPS, MAX_PARALLELISM, directory, options))


def test_writes_wait_for_publish_while_the_cache_has_room_and_time(tmp_path: Path) -> None:
    with open_memory(tmp_path, 1000, 3600.0) as backend:
        backend.table(VALUE).put("k", [1])
        assert query(backend, VALUE, "k") is None
        backend.publish()
        assert query(backend, VALUE, "k") == [1]


@pytest.mark.parametrize("value_of", [int, lambda number: (7, number)])
def test_values_that_cannot_change_in_place_show_at_once_and_wait_for_the_commit(
    tmp_path: Path, value_of: Callable[[int], Any]
) -> None:
    """Nor can a pair of such values, which is the form of a value with its time."""
    with open_memory(tmp_path, 1000, 0.0) as backend:
        table = backend.table(VALUE)
        assert isinstance(backend, ByteStoreBackend)
        store = backend.live_store()[1]
        table.put("old", "text")
        list(backend.commit(0))
        written = len(list(store.scan(b"", b"\xff")))
        backend.begin(1)
        for number in range(600):  # the clock is checked every 256 operations
            table.put(f"k{number}", value_of(number))
        table.put_many(["many"], [value_of(600)])
        table.delete("old")
        backend.publish()
        shown = [query(backend, VALUE, key) for key in ("k0", "k599", "many", "old")]
        assert shown == [value_of(0), value_of(599), value_of(600), None]
        assert len(list(store.scan(b"", b"\xff"))) == written
        backend.rollback()
        assert [query(backend, VALUE, key) for key in ("k0", "old")] == [None, "text"]


@pytest.mark.parametrize("changing", [[1], (7, [1])])
@pytest.mark.parametrize("many", [False, True])
def test_one_value_that_can_change_has_all_written(tmp_path: Path, many: bool, changing: Any) -> None:
    with open_memory(tmp_path, 100_000, 3600.0) as backend:
        table = backend.table(VALUE)
        pairs = [*((f"k{number}", number) for number in range(5000)), ("list", changing)]
        if many:
            table.put_many([key for key, _ in pairs], [value for _, value in pairs])
        else:
            for key, value in pairs:
                table.put(key, value)
        backend.publish()
        assert (query(backend, VALUE, "k0"), query(backend, VALUE, "list")) == (0, changing)


def test_an_unwritten_value_that_cannot_be_serialized_fails_its_key_alone(tmp_path: Path) -> None:
    with open_memory(tmp_path, 1000, 3600.0) as backend:
        backend.table(VALUE).put_many(["bad", "good"], [1 << 70, 1])
        found = backend.reader(Isolation.LIVE).get(VALUE, None, ["bad", "good"])
        assert found.values == [FailureCode.INTERNAL, b"\x01"]


@pytest.mark.parametrize("descriptor", [VALUE, LIST, MAP], ids=lambda one: one.kind.value)
def test_large_values_count_as_several(tmp_path: Path, descriptor: StateDescriptor) -> None:
    """The cache may have an eighth more than its entries, and what came before the values' size was known."""
    with open_memory(tmp_path, 100_000, 3600.0) as backend:
        table = backend.table(descriptor)
        assert isinstance(table, ByteTable)
        value: Any = "x" * 1600
        most = 0
        for number in range(25_000):
            table.put(f"k{number}", {VALUE: value, LIST: [value], MAP: {"m": value}}[descriptor])
            most = max(most, number % 256 == 0 and table.size() // table.weight)
        assert 1000 < most <= 10_000 * 2 + 600


def test_writes_show_without_publish_once_the_interval_has_passed(tmp_path: Path) -> None:
    with open_memory(tmp_path, 1000, 0.0) as backend:
        table = backend.table(VALUE)
        for number in range(300):
            table.put(f"k{number}", [number])
        assert query(backend, VALUE, "k0") == [0]


@pytest.mark.parametrize("operation", ["put", "put_many", "get", "list_add", "map_put", "map_get"])
def test_the_cache_is_bounded_however_long_the_epoch(tmp_path: Path, operation: str) -> None:
    with open_memory(tmp_path, 64, 3600.0) as backend:
        descriptor = LIST if operation.startswith("list") else MAP if operation.startswith("map") else VALUE
        table = backend.table(descriptor)
        assert isinstance(table, ByteTable)
        for number in range(500):
            key = f"k{number}"
            arguments = {"put": (key, 1), "put_many": ([key], [1]), "list_add": (key, [1]), "map_put": (key, "m", 1)}
            getattr(table, operation)(*arguments.get(operation, (key, "m") if descriptor is MAP else (key,)))
            assert table.size() <= 64 * 9 // 8 + 64
        found = [table.get(f"k{number}") is not None for number in range(500)]
        assert all(found) or not any(found)


def test_a_large_put_many_is_taken_in_parts(tmp_path: Path) -> None:
    with open_memory(tmp_path, 1000, 3600.0) as backend:
        table = backend.table(VALUE)
        assert isinstance(table, ByteTable)
        table.put_many([f"k{number}" for number in range(20_000)], list(range(20_000)))
        assert table.size() <= 4096 + 1000
        assert table.get("k19999") == 19_999
