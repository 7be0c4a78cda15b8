"""Laws of a proxy whose owners die, fall silent, or return with another state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack
import pytest

from qstate.errors import FailureCode
from qstate.keys import ColumnType, KeyGroupRange, key_group
from qstate.protocol.messages import Description, Get, Location, Values
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving import owner_connection
from qstate.runtime.serving.client_proxy import ClientProxy
from tests.runtime.client.peer import CLOSE, Peer, Reply
from tests.runtime.serving.conftest import ProxyFactory
from tests.runtime.serving.oracles import TableOracle, table
from tests.runtime.serving.raw_client import RawClient, wait_until
from tests.runtime.serving.readers import MAX_PARALLELISM, DictReader, instance
from tests.runtime.serving.test_client_proxy import EVERYTHING, LOWER, TARGET, UPPER, failure_code

SHORT_SILENCE_S = 0.2
STATE_ID = b"1" * 16


@pytest.fixture
def proxy(start_proxy: ProxyFactory) -> ClientProxy:
    return start_proxy()


@pytest.fixture
def owner() -> Iterator[Peer]:
    """A state server with a script."""
    with Peer(state=VALUE) as owner:
        yield owner


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_connection, "SILENCE_S", SHORT_SILENCE_S)


VALUE = instance(DictReader({})).describe()
LIST = {**VALUE, "kind": "list", "fingerprint": "of another description"}


def at(peer: Peer, groups: KeyGroupRange = EVERYTHING, state_id: bytes = STATE_ID) -> Owner:
    return Owner(groups, *peer.address, state_id)


def gets(peer: Peer) -> list[Get]:
    return [request for request in peer.requests if isinstance(request, Get)]


def no_request_in_flight(proxy: ClientProxy) -> bool:
    return proxy._endpoint.in_flight == 0


def keeping(*keys: str) -> Callable[[Any], Iterable[Reply]]:
    """A script that does not answer gets of these keys."""

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get) and request.keys[0] in keys:
            return []
        return [
            Values(
                request.id,
                (1,) * len(request.keys),
                tuple(msgpack.packb(key) for key in request.keys),
                VALUE["fingerprint"],
            )
        ]

    return script


def test_get_whose_owner_dies_is_unavailable_and_sent_once(proxy: ClientProxy, owner: Peer) -> None:
    owner.script = lambda request: [CLOSE] if request.keys == ("poison",) else owner.honest(request)
    with Peer(state=VALUE) as heir:
        oracle = TableOracle(lastTemperature=table(instance(DictReader({})), at(owner)))
        proxy.set_location_oracle("job", oracle)
        with RawClient(proxy.address) as client:
            assert isinstance(client.get(TARGET, "key 1"), Values)
            oracle.tables["lastTemperature"] = table(instance(DictReader({})), at(heir))
            assert failure_code(client.get(TARGET, "poison")) == FailureCode.UNAVAILABLE
            owner.close()
            assert isinstance(client.get(TARGET, "key 2"), Values)
        assert [get.keys for get in gets(owner)] == [("key 1",), ("poison",)]
        assert [get.keys for get in gets(heir)] == [("key 2",)]


def test_only_the_keys_of_an_owner_that_dies_fail(proxy: ClientProxy, owner: Peer) -> None:
    keys = [f"key {number}" for number in range(20)]
    lower = {key for key in keys if key_group(key, MAX_PARALLELISM) in LOWER}
    owner.script = lambda request: [CLOSE]
    with Peer(state=VALUE) as other:
        proxy.set_location_oracle(
            "job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner, LOWER), at(other, UPPER)))
        )
        with RawClient(proxy.address) as client:
            answer = client.get(TARGET, *keys)
    assert isinstance(answer, Values)
    failed = {key for key, result in zip(keys, answer.results, strict=True) if result == FailureCode.UNAVAILABLE}
    assert failed == lower
    assert len(gets(owner)) == 1


@pytest.mark.parametrize("result", [b"\x01", None])
def test_answer_of_an_earlier_epoch_than_demanded_is_not_passed_on(
    proxy: ClientProxy, owner: Peer, result: bytes | None
) -> None:
    owner.script = lambda request: [Values(request.id, (6,), (result,), VALUE["fingerprint"])]
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    with RawClient(proxy.address) as client:
        assert failure_code(client.get(TARGET, "key 1", options={"min_epoch": 7})) == FailureCode.UNAVAILABLE
        assert isinstance(client.get(TARGET, "key 1", options={"min_epoch": 6}), Values)
    assert owner.connections == 2


def test_connection_that_an_owner_closed_between_two_gets_fails_neither(proxy: ClientProxy, owner: Peer) -> None:
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    with RawClient(proxy.address) as client:
        for number in range(20):
            assert isinstance(client.get(TARGET, f"key {number}"), Values)
            owner.drop_connections()
            owner.await_gone()
    assert len(gets(owner)) == 20


@pytest.mark.usefixtures("short_silence")
def test_get_of_an_owner_that_is_silent_for_long_is_answered_by_its_deadline(proxy: ClientProxy, owner: Peer) -> None:
    owner.script = keeping("held")
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    deadline_ms = int(3000 * SHORT_SILENCE_S)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        held = [client.send_get(TARGET, "held", deadline_ms=deadline_ms) for _ in range(3)]
        assert {failure_code(client.answer_to(number)) for number in held} == {FailureCode.DEADLINE_EXCEEDED}
        wait_until(lambda: no_request_in_flight(proxy), "the end of every request")
        assert isinstance(client.get(TARGET, "key 2"), Values)
        assert owner.connections == 2


@pytest.mark.usefixtures("short_silence")
def test_short_deadlines_do_not_hide_that_an_owner_is_silent(proxy: ClientProxy, owner: Peer) -> None:
    owner.script = keeping("held")
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)

        def is_given_up() -> bool:
            assert failure_code(client.get(TARGET, "held", deadline_ms=20)) == FailureCode.DEADLINE_EXCEEDED
            return owner.connections == 2

        wait_until(is_given_up, "another connection to the silent owner")


@pytest.mark.usefixtures("short_silence")
def test_gets_that_a_silent_owner_has_wait_until_their_deadlines(proxy: ClientProxy, owner: Peer) -> None:
    owner.script = keeping("held", "slow")
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    with RawClient(proxy.address) as client:
        slow = client.send_get(TARGET, "slow")
        wait_until(lambda: gets(owner), "the slow get")
        held = client.get(TARGET, "held", deadline_ms=int(3000 * SHORT_SILENCE_S))
        assert failure_code(held) == FailureCode.DEADLINE_EXCEEDED
        assert isinstance(client.get(TARGET, "key 1"), Values)
        assert owner.connections == 2
        owner.send_to(0, Values(gets(owner)[0].id, (1,), (msgpack.packb("late"),), VALUE["fingerprint"]))
        answer = client.answer_to(slow)
        assert isinstance(answer, Values) and answer.results == (msgpack.packb("late"),)
        assert len([get for get in gets(owner) if get.keys == ("slow",)]) == 1


def test_request_of_a_client_that_has_gone_ends_once(proxy: ClientProxy, owner: Peer) -> None:
    owner.script = keeping("held")
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(instance(DictReader({})), at(owner))))
    with RawClient(proxy.address) as client:
        client.send_get(TARGET, "held", deadline_ms=300)
        wait_until(lambda: gets(owner), "the get")
    wait_until(lambda: no_request_in_flight(proxy), "the end of the request")
    owner.send_to(0, Values(gets(owner)[0].id, (1,), (b"\x01",), VALUE["fingerprint"]))
    with RawClient(proxy.address) as other:
        assert isinstance(other.get(TARGET, "key 1"), Values)
        wait_until(lambda: no_request_in_flight(proxy), "the end of every request")


# --- a state that returns with another description ----------------------------------------------------------------


def described(peer: Peer, state: dict[str, Any]) -> LocationTable:
    return LocationTable("job", state, MAX_PARALLELISM, (at(peer),))


def test_values_have_the_fingerprint_of_the_description_that_they_were_read_under(
    proxy: ClientProxy, owner: Peer
) -> None:
    oracle = TableOracle(lastTemperature=described(owner, VALUE))
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        for state in (VALUE, LIST, VALUE):
            owner.state, oracle.tables["lastTemperature"] = state, described(owner, state)
            values = client.get(TARGET, "key 1")
            assert isinstance(values, Values) and values.fingerprint == state["fingerprint"]
            found = client.locate(*TARGET)
            assert isinstance(found, Location) and found.state == state
            listed = client.describe("job")
            assert isinstance(listed, Description) and listed.entries == (state,)


def test_values_of_two_descriptions_are_not_put_into_one_answer(proxy: ClientProxy, owner: Peer) -> None:
    keys = [f"key {number}" for number in range(20)]
    with Peer(state=LIST) as other:
        oracle = TableOracle(lastTemperature=table(instance(DictReader({})), at(owner, LOWER), at(other, UPPER)))
        proxy.set_location_oracle("job", oracle)
        with RawClient(proxy.address) as client:
            answer = client.get(TARGET, *keys, deadline_ms=300)
            assert isinstance(answer, Values) and answer.fingerprint == VALUE["fingerprint"]
            for key, result in zip(keys, answer.results, strict=True):
                lower = key_group(key, MAX_PARALLELISM) in LOWER
                assert result == (msgpack.packb(key) if lower else FailureCode.UNKNOWN_STATE_ID)
            other.state = VALUE
            assert client.get(TARGET, *keys).results == tuple(map(msgpack.packb, keys))  # type: ignore[union-attr]


def test_keys_are_checked_by_the_new_description(proxy: ClientProxy, owner: Peer) -> None:
    halves = at(owner, LOWER), at(owner, UPPER, bytes([2] * 16))
    before = instance(DictReader({}))
    oracle = TableOracle(lastTemperature=table(before, *halves))
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        assert failure_code(client.get(TARGET, 7)) == FailureCode.WRONG_KEY_TYPE
    after = {**VALUE, "key_types": (ColumnType.BIGINT.value,), "fingerprint": "of another description"}
    owner.state = after
    oracle.tables["lastTemperature"] = LocationTable("job", after, MAX_PARALLELISM, halves)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, 7), Values)
