"""Laws of demands: the server that reads enforces `min_epoch` and `max_staleness_ms`, by the data that it read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from qstate.backends.contract import UNBOUNDED, ReadResult
from qstate.descriptors import StateDescriptor
from qstate.errors import FailureCode
from qstate.keys import Key, KeyGroupRange, Namespace, key_group
from qstate.protocol.messages import Failure, Values
from qstate.runtime.serving.registry import StateRegistry
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import RawClient
from tests.runtime.serving.readers import EPOCH, MAX_PARALLELISM, DictReader, instance

ENTRIES = {"a": 1.5, "b": 2.5}
COMMITTED = {"isolation": "committed"}
EARLIER = EPOCH - 3


class MovingReader(DictReader):
    """Calls `move` in the middle of each read."""

    def __init__(self, move: Callable[[MovingReader], None]) -> None:
        super().__init__(ENTRIES)
        self.move = move

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        self.move(self)
        return super().get(descriptor, namespace, keys, most_bytes)


class Lag:
    """The `behind_since` of a committed view that is behind for `behind_s` seconds, or not behind (None)."""

    def __init__(self, behind_s: float | None = None) -> None:
        self.behind_s = behind_s
        self.asked = 0

    def __call__(self) -> float | None:
        self.asked += 1
        return None if self.behind_s is None else time.monotonic() - self.behind_s


def test_the_epoch_is_that_of_the_answer(registry: StateRegistry, start_server: ServerFactory) -> None:
    def advance(reader: MovingReader) -> None:
        reader.epoch += 1

    state_id = registry.register(instance(MovingReader(advance)))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, "a", options={"min_epoch": EPOCH + 1})
        refusal = client.get(state_id, "a", options={"min_epoch": EPOCH + 3})
    assert isinstance(answer, Values) and answer.epochs == (EPOCH + 1,)
    assert isinstance(refusal, Failure) and refusal.details["epoch"] == EPOCH + 2


def test_a_view_behind_the_bound_is_refused(registry: StateRegistry, start_server: ServerFactory) -> None:
    lag = Lag(5.0)
    state_id = registry.register(instance(DictReader(ENTRIES), committed=DictReader(ENTRIES), behind_since=lag))
    with RawClient(start_server().address) as client:
        assert isinstance(client.get(state_id, "a", options=COMMITTED | {"max_staleness_ms": 3_600_000}), Values)
        refusal = client.get(state_id, "a", options=COMMITTED | {"max_staleness_ms": 4_999})
        lag.behind_s = None
        assert isinstance(client.get(state_id, "a", options=COMMITTED | {"max_staleness_ms": 4_999}), Values)
    assert isinstance(refusal, Failure) and refusal.code == FailureCode.TOO_STALE
    assert refusal.details["max_staleness_ms"] == 4_999
    assert refusal.details["staleness_ms"] >= 5_000  # type: ignore[operator]


def test_state_restored_from_before_epoch_0_is_committed(registry: StateRegistry, start_server: ServerFactory) -> None:
    state_id = registry.register(instance(DictReader({}), committed=DictReader(ENTRIES, epoch=-1), restored=True))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, "a", "missing", options=COMMITTED)
        refusal = client.get(state_id, "a", options=COMMITTED | {"min_epoch": 0})
    assert isinstance(answer, Values) and answer.epochs == (-1, -1) and answer.results[1] is None
    assert isinstance(refusal, Failure) and refusal.code == FailureCode.EPOCH_NOT_REACHED


def test_a_live_view_is_never_stale_and_only_a_demand_asks_for_the_staleness(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    lag = Lag(5.0)
    state_id = registry.register(instance(DictReader(ENTRIES), committed=DictReader(ENTRIES), behind_since=lag))
    with RawClient(start_server().address) as client:
        assert isinstance(client.get(state_id, "a", options={"max_staleness_ms": 0}), Values)
        assert isinstance(client.get(state_id, "a", options=COMMITTED), Values)
        assert isinstance(client.get(state_id, "a"), Values)
    assert lag.asked == 0


@pytest.mark.parametrize(("before", "during", "served"), [(None, 5.0, True), (5.0, None, False)])
def test_staleness_is_that_of_the_moment_before_the_read(
    before: float | None, during: float | None, served: bool, registry: StateRegistry, start_server: ServerFactory
) -> None:
    lag = Lag(before)

    def fall_behind_or_catch_up(reader: MovingReader) -> None:
        lag.behind_s = during

    reader = MovingReader(fall_behind_or_catch_up)
    state_id = registry.register(instance(DictReader(ENTRIES), committed=reader, behind_since=lag))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, "a", options=COMMITTED | {"max_staleness_ms": 100})
    assert isinstance(answer, Values) == served
    assert reader.reads == served


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        ({"min_epoch": EPOCH + 1}, FailureCode.EPOCH_NOT_REACHED),
        ({"max_staleness_ms": 10}, FailureCode.TOO_STALE),
        ({}, FailureCode.NO_COMMITTED_EPOCH),
    ],
)
def test_keys_of_other_owners_fail_as_such_also_when_a_demand_is_not_met(
    demand: dict[str, int], code: FailureCode, registry: StateRegistry, start_server: ServerFactory
) -> None:
    keys = [f"key {number}" for number in range(20)]
    half = KeyGroupRange(0, MAX_PARALLELISM // 2)
    reader = DictReader(ENTRIES) if demand else DictReader({}, epoch=-1)
    state_id = registry.register(instance(reader, committed=reader, key_groups=half, behind_since=Lag(5.0)))
    with RawClient(start_server().address) as client:
        answer = client.get(state_id, *keys, options=COMMITTED | demand)
    assert isinstance(answer, Values)
    owned = [key_group(key, MAX_PARALLELISM) in half for key in keys]
    assert any(owned) and not all(owned)
    assert answer.results == tuple(code if own else FailureCode.KEY_GROUP_NOT_OWNED for own in owned)


@pytest.mark.parametrize("local", [False, True], ids=["other process", "same process"])
def test_a_proxy_passes_demands_on_and_asks_again_until_they_are_met(
    local: bool, registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    def advance(reader: MovingReader) -> None:
        reader.epoch += 1

    served = instance(DictReader(ENTRIES), committed=MovingReader(advance))
    server = start_server()
    place = table(served, owner(served, server.address, registry.register(served)))
    proxy = start_proxy(local=server if local else None)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=place))
    with RawClient(proxy.address) as client:
        answer = client.get(("job", "lastTemperature"), "a", options=COMMITTED | {"min_epoch": EPOCH + 4})
        refusal = client.get(
            ("job", "lastTemperature"), "a", options=COMMITTED | {"min_epoch": 1 << 40}, deadline_ms=500
        )
    assert isinstance(answer, Values) and answer.epochs == (EPOCH + 4,)
    assert isinstance(refusal, Failure) and refusal.code == FailureCode.EPOCH_NOT_REACHED
