"""Laws of the state server's answers that the conformance suite does not have: failing readers, equal keys, costs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from qstate.backends.contract import Scanned, Selection, StateScan
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode
from qstate.keys import ColumnType, Key, Namespace
from qstate.protocol.codec import encode, frame
from qstate.protocol.messages import Failure, Page, Ping, Pong, Scan, Values
from qstate.runtime.serving.registry import StateRegistry
from tests.runtime.serving.conftest import ServerFactory
from tests.runtime.serving.raw_client import RawClient, value
from tests.runtime.serving.readers import EPOCH, MAX_PARALLELISM, DictReader, FailingReader, instance

ENTRIES = {"a": 1.5, "b": 2.5, "c": 3.5}


def test_failure_of_one_key_does_not_affect_the_others(registry: StateRegistry, start_server: ServerFactory) -> None:
    torn = {**ENTRIES, "b": FailureCode.CONCURRENT_MODIFICATION}
    state_id = registry.register(instance(DictReader(torn)))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, "a", "b")
        alone = client.get(state_id, "b")
    assert isinstance(answer, Values) and isinstance(alone, Values)
    assert answer.results == (value(1.5), FailureCode.CONCURRENT_MODIFICATION)
    assert answer.epochs == (EPOCH, -1)
    assert (alone.results, alone.epochs) == ((FailureCode.CONCURRENT_MODIFICATION,), (-1,))


REFUSED = {
    "isolation that is not declared": (FailureCode.UNSUPPORTED, {"options": {"isolation": "committed"}}),
    "epoch that is no number": (FailureCode.MALFORMED, {"options": {"min_epoch": "7"}}),
    "staleness below zero": (FailureCode.MALFORMED, {"options": {"max_staleness_ms": -1}}),
    "deadline that has passed": (FailureCode.DEADLINE_EXCEEDED, {"deadline_ms": 0}),
}


@pytest.mark.parametrize(("code", "change"), REFUSED.values(), ids=REFUSED)
def test_refused_request_fails_alone(
    code: FailureCode, change: dict[str, object], registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader(ENTRIES)))
    server = start_server()
    with RawClient(server.address) as client, RawClient(server.address) as other:
        fields = {"deadline_ms": 10_000, "target": state_id, "namespace": None, "options": {}, "keys": ("a",), **change}
        # Packed by hand: the encoder refuses most of these.
        client.sock.sendall(frame(msgpack.packb([2, 77, *fields.values()])))
        client.sock.sendall(frame(encode(Ping(78))))
        payloads = client.read_payloads(2)
        refusal = next(payload for payload in map(msgpack.unpackb, payloads) if payload[1] == 77)
        assert refusal[:3] == [10, 77, code]
        assert isinstance(client.get(state_id, "a"), Values)
        assert isinstance(other.get(state_id, "a"), Values)


@pytest.mark.parametrize(
    ("key_types", "good", "bad"),
    [
        ((ColumnType.STRING,), "a", b"a"),
        ((ColumnType.BINARY,), b"a", "a"),
        ((ColumnType.BIGINT,), 7, "7"),
        ((ColumnType.STRING, ColumnType.BIGINT), ("a", 7), ("a", "7")),
    ],
)
def test_key_types_are_those_of_the_stream(
    key_types: tuple[ColumnType, ...], good: object, bad: object, registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader({good: 1.5}), key_types=key_types))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, good)  # type: ignore[arg-type]
        refusal = client.get(state_id, good, bad)  # type: ignore[arg-type]
    assert isinstance(answer, Values) and answer.results == (value(1.5),)
    assert isinstance(refusal, Failure) and refusal.code == FailureCode.WRONG_KEY_TYPE
    assert refusal.details["expected"] == ", ".join(column.value for column in key_types)


def test_bug_in_a_backend_is_internal_and_breaks_nothing_else(
    registry: StateRegistry, start_server: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    broken, valid = registry.register(instance(FailingReader())), registry.register(instance(DictReader(ENTRIES)))
    with RawClient(start_server().address) as client:
        refusal = client.get(broken, "a")
        assert isinstance(refusal, Failure) and refusal.code == FailureCode.INTERNAL
        assert "a bug in a backend" not in str(refusal)
        assert isinstance(client.get(valid, "a"), Values)
    assert "a bug in a backend" in caplog.text


def test_equal_keys_are_read_once_and_each_is_answered(registry: StateRegistry, start_server: ServerFactory) -> None:
    entries: dict[Any, object] = {"a": 1.5, "b": 2.5, "c": FailureCode.INTERNAL}
    reader = DictReader(entries)
    state_id = registry.register(instance(reader))
    keys = ("b", "a", "b", "missing", "c", "missing", "a", "c")
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, *keys)
    assert isinstance(answer, Values)
    assert answer.results == tuple(
        None if key == "missing" else FailureCode.INTERNAL if key == "c" else msgpack.packb(entries[key])
        for key in keys
    )
    assert reader.order == ["b", "a", "missing", "c"]


@pytest.mark.parametrize("count", [3, 300])
def test_equal_keys_of_several_columns_are_read_once(
    registry: StateRegistry, start_server: ServerFactory, count: int
) -> None:
    reader = DictReader({("a", 1): 1.5})
    state_id = registry.register(instance(reader, key_types=(ColumnType.STRING, ColumnType.BIGINT)))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, ("a", 1), ("b", 2), *(("a", 1),) * count)
    assert isinstance(answer, Values) and len(answer.results) == count + 2
    assert reader.order == [("a", 1), ("b", 2)]


def test_reading_stops_when_no_frame_can_hold_the_values(registry: StateRegistry, start_server: ServerFactory) -> None:
    reader = CountingReader({f"key {number}": "x" * 1500 for number in range(100)})
    state_id = registry.register(instance(reader))
    with RawClient(start_server(max_frame=4096).address) as client:
        for keys in (tuple(reader.entries), ("key 1",) * 100, ("key 1", "key 2") * 50):
            reader.serialized = 0
            refusal = client.get(state_id, *keys)
            assert isinstance(refusal, Failure) and refusal.code == FailureCode.TOO_LARGE
            assert refusal.details == {"field": "answer", "limit": 4096}
            assert reader.serialized <= 3
        assert isinstance(client.get(state_id, "key 1", "key 2"), Values)


class CountingReader(DictReader):
    """Counts the values that it serializes."""

    serialized = 0

    def _answer(self, key: Key, namespace: Namespace) -> bytes | FailureCode | None:
        self.serialized += 1
        return super()._answer(key, namespace)


def test_unregistered_state_is_unknown_while_its_successor_is_served(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    old = registry.register(instance(DictReader({"a": 1.5})))
    with RawClient(start_server().address) as client:
        new = registry.register(instance(DictReader({"a": 2.5})))
        registry.unregister(old)
        registry.unregister(old)
        refusal, answer = client.get(old, "a"), client.get(new, "a")
    assert isinstance(refusal, Failure) and refusal.code == FailureCode.UNKNOWN_STATE_ID
    assert isinstance(answer, Values) and answer.results == (value(2.5),)


def test_client_that_reads_more_slowly_than_it_asks_has_every_answer(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    """The server stops executing for it, and goes on when it has read; frames that are hardly larger than an answer."""
    gets, size = 600, 48_000
    state_id = registry.register(instance(DictReader({"large": b"x" * size})))
    server = start_server(max_frame=50_000)
    with RawClient(server.address, receive_buffer=4096) as client:
        numbers = [client.send_get(state_id, "large") for _ in range(gets)]
        for number in numbers:
            assert isinstance(client.answer_to(number), Values)


class _PreparingScan(StateScan):
    """Prepares until the gate opens, in short steps."""

    epoch = 0

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def prepare(self) -> Iterator[None]:
        while not self._gate.is_set():
            yield

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        return iter(())

    def close(self) -> None:
        """Nothing is held."""


class _PreparingReader(DictReader):
    def __init__(self) -> None:
        super().__init__({"a": 1})
        self.gate = threading.Event()

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        return _PreparingScan(self.gate)


def test_a_scan_that_is_prepared_for_long_delays_no_other_requests(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = _PreparingReader()
    state_id = registry.register(instance(reader))
    server = start_server(query_threads=1, network_threads=1)
    with RawClient(server.address) as scanning, RawClient(server.address) as other:
        number = scanning.connection.next_id()
        scan = Scan(number, 60_000, state_id, (), None, 0, MAX_PARALLELISM, None, b"", {})
        scanning.sock.sendall(scanning.connection.send(scan))
        assert isinstance(scanning.ping(), Pong)  # the scan has been read
        for _ in range(3):
            assert isinstance(other.get(state_id, "a"), Values)
        assert isinstance(scanning.get(state_id, "a"), Values)
        reader.gate.set()
        assert isinstance(scanning.answer_to(number), Page)
