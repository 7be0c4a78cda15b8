"""Parts of values over real sockets: who may have them, what a walk over a large value costs, and how it ends early."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import ValueParts
from qstate.descriptors import ListStateDescriptor
from qstate.errors import FailureCode
from qstate.keys import Key, Namespace
from qstate.protocol.codec import encode, frame
from qstate.protocol.connection import Answer
from qstate.protocol.messages import Cancel, Failure, GetPart, Part
from qstate.runtime.serving.access.audit import LOGGER
from qstate.runtime.serving.registry import StateRegistry
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import RawClient, failure_code
from tests.runtime.serving.readers import EPOCH, DictReader, instance
from tests.runtime.serving.test_access import RULES

LISTED = ListStateDescriptor("l", bytes).queryable("lastTemperature")
MIB = b"x" * (1 << 20)


class Repeated(ValueParts):
    """A list that has one element over and over: so many of them, or without an end."""

    epoch = EPOCH

    def __init__(self, reader: RepeatingReader) -> None:
        self.reader = reader

    def value(self) -> bytes | None:
        raise AssertionError("it is a list")

    def elements(self) -> Iterator[bytes]:
        number = 0
        while self.reader.number is None or number < self.reader.number:
            number += 1
            yield self.reader.element[:]

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("it is a list")

    def entry(self, map_key: bytes) -> bytes | None:
        raise AssertionError("it is a list")

    def close(self) -> None:
        self.reader.closed += 1


class RepeatingReader(DictReader):
    def __init__(self, element: bytes, number: int | None) -> None:
        super().__init__({"a": 1})
        self.element = element
        self.number = number
        self.closed = 0

    def parts(self, descriptor: Any, namespace: Namespace, key: Key) -> ValueParts:
        return Repeated(self)


def serve(registry: StateRegistry, start_server: ServerFactory, reader: DictReader) -> tuple[tuple[str, int], bytes]:
    served = replace(instance(reader), descriptor=LISTED)
    return start_server().address, registry.register(served)


def send_part(client: RawClient, target: Any, part: str, *, key: Key = "a", **fields: Any) -> int:
    number = client.connection.next_id()
    request = GetPart(number, 10_000, target, None, {}, key, part, (), None, 0, 0)._replace(**fields)
    client.sock.sendall(client.connection.send(request))
    return number


def get_part(client: RawClient, target: Any, part: str, **fields: Any) -> Answer:
    return client.answer_to(send_part(client, target, part, **fields))


def test_a_part_needs_the_right_to_read_and_is_in_the_audit_log(
    registry: StateRegistry,
    start_server: ServerFactory,
    start_proxy: ProxyFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    (tmp_path / "access.toml").write_text(RULES)
    options = {"access_file": str(tmp_path / "access.toml"), "peer_token": b"peer", "audit_log": True}
    served = replace(instance(DictReader({"JFK": 1.0}), job="flights", name="lastDelay"))
    server = start_server(**options)
    state_id = registry.register(served)
    proxy = start_proxy(**options)
    proxy.set_location_oracle("flights", TableOracle(lastDelay=table(served, owner(served, server.address, state_id))))
    for name, found in (("reader", Part), ("scanner", Failure)):
        for address, target in ((proxy.address, ("flights", "lastDelay")), (server.address, state_id)):
            with RawClient(address, token=name.encode()) as client:
                answer = get_part(client, target, "bytes", key="JFK", length=100)
                assert isinstance(answer, found), (name, answer)
                assert isinstance(answer, Part) or failure_code(answer) == FailureCode.FORBIDDEN
    proxy.shutdown()
    lines = [record.audit for record in caplog.records if record.name == LOGGER]  # type: ignore[attr-defined]
    assert {(one["principal"], one["request"], one["refusal"], one["keys"]) for one in lines} == {
        ("reader", "GetPart", "", 1),
        ("scanner", "GetPart", "FORBIDDEN", 1),
    }


def test_a_walk_lets_others_have_their_turns_and_ends_when_it_is_cancelled(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    reader = RepeatingReader(b"\x01", None)
    address, state_id = serve(registry, start_server, reader)
    with RawClient(address) as client, RawClient(address) as other:
        number = send_part(client, state_id, "size")
        for _ in range(20):
            assert get_part(other, state_id, "slice", start=2, length=3).result == b"\x93\x01\x01\x01"  # type: ignore[union-attr]
        client.sock.sendall(frame(encode(Cancel(number))))
        assert failure_code(client.answer_to(number)) == FailureCode.CANCELLED
        assert failure_code(get_part(client, state_id, "size", deadline_ms=100)) == FailureCode.DEADLINE_EXCEEDED
    assert reader.closed == 22


def test_a_piece_of_a_large_value_takes_memory_for_the_piece(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    address, state_id = serve(registry, start_server, RepeatingReader(b"\xc6\x00\x10\x00\x00" + MIB, 200))
    with RawClient(address) as client:
        tracemalloc.start()
        try:
            found = get_part(client, state_id, "bytes", start=150 << 20, length=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert isinstance(found, Part) and found.result is not None
    assert (len(found.result), found.total) == (1 << 20, 3 + 200 * (5 + (1 << 20)))
    assert peak < 16 << 20, f"{peak} bytes for a piece of a MiB of a value of 200"
