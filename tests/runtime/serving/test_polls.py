"""Polls over real sockets: what is answered, when, and what a poll that waits costs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.answers import pack_elements
from qstate.backends.contract import ChangeOp
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from qstate.errors import FailureCode
from qstate.keys import KeyGroupRange
from qstate.protocol.messages import Changes, Failure, Get, Poll, Run
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import TableOracle
from tests.runtime.serving.raw_client import RawClient, wait_until
from tests.runtime.serving.readers import MAX_PARALLELISM

ServerFactory = Callable[..., StateServer]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "checkpoint")


@pytest.fixture
def served(history: History, registry: StateRegistry, start_server: ServerFactory) -> Iterator[tuple[RawClient, bytes]]:
    """A client of a server that serves the history, and the id of the state."""
    (instance,) = history.instances()
    state_id = registry.register(instance)
    with RawClient(start_server().address) as client:
        yield client, state_id


def send_poll(client: RawClient, target: Any, **fields: Any) -> int:
    number = client.connection.next_id()
    poll = Poll(number, 10_000, target, (), (), None, 0, MAX_PARALLELISM, 0, b"", 0, 1 << 24)._replace(**fields)
    client.sock.sendall(client.connection.send(poll))
    return number


def poll(client: RawClient, target: Any, **fields: Any) -> Changes | Failure:
    answer = client.answer_to(send_poll(client, target, **fields))
    assert isinstance(answer, Changes | Failure)
    return answer


def changes(client: RawClient, target: Any, **fields: Any) -> Changes:
    answer = poll(client, target, **fields)
    assert isinstance(answer, Changes), answer
    return answer


def pairs(answer: Changes) -> list[tuple[int, Any, bytes]]:
    return [
        (run.epoch, key, value) for run in answer.runs for key, value in zip(run.keys, run.values or (), strict=True)
    ]


@pytest.mark.parametrize(
    ("behind_s", "told"), [(None, {}), (2.0, {"?staleness_ms": 2000}), (math.inf, {"?staleness_ms": None})]
)
def test_a_node_that_may_lack_commits_says_so_in_its_changes(
    behind_s: float | None, told: dict[str, Any], history: History, registry: StateRegistry, start_server: ServerFactory
) -> None:
    """It tells how old the commits may be that it lacks, or that it does not know."""
    now = time.monotonic()
    (instance,) = history.instances()
    behind = replace(instance, behind_since=lambda: None if behind_s is None else now - behind_s)
    history.commit(0, put("JFK", 1))
    with RawClient(start_server().address) as client:
        state_id = registry.register(behind)
        found = dict(changes(client, state_id).attributes)
        assert found.pop("?owner") == int.from_bytes(state_id[:7], "big")
        assert isinstance(found.pop("?history"), int)
    assert found.keys() == told.keys()
    for name, least in told.items():
        assert found[name] is None if least is None else least <= found[name] < least + 60_000


def test_poll_waits_for_the_next_committed_epoch(history: History, served: tuple[RawClient, bytes]) -> None:
    client, state_id = served
    history.commit(0, put("JFK", 1))
    number = send_poll(client, state_id, from_epoch=1, wait_ms=10_000)
    history.seal(1, put("JFK", 2))
    client.ping()
    assert not client.events, "epoch 1 is not committed"
    history.feeds[0].finalize(1)
    answer = client.answer_to(number)
    assert isinstance(answer, Changes) and pairs(answer) == [(1, "JFK", b"\x02")]


def test_epochs_without_selected_changes_do_not_end_the_wait(history: History, served: tuple[RawClient, bytes]) -> None:
    client, state_id = served
    number = send_poll(client, state_id, keys=("LGA",), wait_ms=10_000)
    history.commit(0, put("JFK", 1))
    history.commit(1, put("JFK", 2))
    client.ping()
    assert not client.events
    history.commit(2, put("LGA", 3), put("JFK", 3))
    answer = client.answer_to(number)
    assert isinstance(answer, Changes)
    assert (pairs(answer), answer.next_epoch) == ([(2, "LGA", b"\x03")], 3)


def test_long_history_comes_in_answers_of_bounded_size(history: History, served: tuple[RawClient, bytes]) -> None:
    """Each goes on where the one before ended, within an epoch if need be."""
    for epoch in range(3):
        history.commit(epoch, *(put(f"key {number}", "x" * 10_000) for number in range(150)))
    found, epoch, position, answers = [], 0, b"", 0
    while epoch < 3:
        answer = changes(*served, from_epoch=epoch, position=position)
        assert sum(len(value) for _, _, value in pairs(answer)) <= 1 << 20
        found += [(epoch, key) for epoch, key, _ in pairs(answer)]
        epoch, position, answers = answer.next_epoch, answer.position, answers + 1
    assert sorted(found) == sorted((epoch, f"key {number}") for epoch in range(3) for number in range(150))
    assert answers == 5


def test_change_that_fits_no_answer_is_too_large(
    history: History, registry: StateRegistry, start_server: ServerFactory
) -> None:
    (instance,) = history.instances()
    state_id = registry.register(instance)
    history.commit(0, put("JFK", "x" * 5000))
    with RawClient(start_server(max_frame=4096).address) as client:
        answer = poll(client, state_id)
        assert isinstance(answer, Failure) and answer.code == FailureCode.TOO_LARGE
        client.ping()


def test_waiting_poll_is_answered_when_the_state_goes(
    history: History, registry: StateRegistry, served: tuple[RawClient, bytes]
) -> None:
    client, state_id = served
    number = send_poll(client, state_id, wait_ms=10_000)
    client.ping()
    registry.unregister(state_id)
    history.feeds[0].close()
    answer = client.answer_to(number)
    assert isinstance(answer, Failure) and answer.code == FailureCode.UNKNOWN_STATE_ID


def test_waiting_poll_is_answered_at_shutdown(
    history: History, registry: StateRegistry, start_server: ServerFactory
) -> None:
    (instance,) = history.instances()
    state_id = registry.register(instance)
    server = start_server()
    with RawClient(server.address) as client:
        number = send_poll(client, state_id, wait_ms=10_000)
        client.ping()
        ending = threading.Thread(target=server.shutdown)
        ending.start()
        answer = client.answer_to(number)
        ending.join(5.0)
    assert isinstance(answer, Failure) and answer.code == FailureCode.SHUTTING_DOWN


def test_many_waiting_polls_hold_no_thread(
    history: History, registry: StateRegistry, start_server: ServerFactory
) -> None:
    """The server has one query thread, and answers gets while 300 polls wait."""
    (instance,) = history.instances()
    state_id = registry.register(instance)
    server = start_server()
    with RawClient(server.address) as client:
        numbers = [send_poll(client, state_id, wait_ms=10_000) for _ in range(300)]
        assert client.get(state_id, "JFK")
        history.commit(0, put("JFK", 1))
        answers = [client.answer_to(number) for number in numbers]
    assert all(isinstance(answer, Changes) and pairs(answer) == [(0, "JFK", b"\x01")] for answer in answers)


def test_kinds_of_change_are_told_apart(tmp_path: Path, registry: StateRegistry, start_server: ServerFactory) -> None:
    def runs_of(name: str, descriptor: StateDescriptor, *made: Any) -> list[Run]:
        history = History(tmp_path / name, descriptor=descriptor.queryable(name))
        history.commit(0, *made)
        (instance,) = history.instances()
        state_id = registry.register(instance)
        return [*changes(client, state_id).runs]

    one = put("JFK", 1, state="s")
    with RawClient(start_server().address) as client:
        added = one._replace(op=ChangeOp.LIST_ADD, data=pack_elements([b"\x01", b"\xa1x"]))
        gone = one._replace(op=ChangeOp.DELETE, data=b"")
        assert runs_of("list", ListStateDescriptor("s", object), gone, added) == [
            Run(0, 2, None, ("JFK",), None, None),
            Run(0, 5, None, ("JFK",), None, (b"\x92\x01\xa1x",)),
        ]
        entry = one._replace(op=ChangeOp.MAP_PUT, map_key=b"\xa1a")
        removed = entry._replace(op=ChangeOp.MAP_REMOVE, map_key=b"\xa1b", data=b"")
        assert runs_of("map", MapStateDescriptor("s", int), entry, removed) == [
            Run(0, 3, None, ("JFK",), ("a",), (b"\x01",)),
            Run(0, 4, None, ("JFK",), ("b",), None),
        ]


def test_proxy_passes_a_poll_to_the_owner_of_its_first_key_group(
    tmp_path: Path, registry: StateRegistry, start_server: ServerFactory, start_proxy: Callable[..., Any]
) -> None:
    history = History(tmp_path / "two", parallelism=2)
    servers = [start_server(), start_server()]
    instances = history.instances((0, 1))
    owners = [
        Owner(one.key_groups, *server.address, registry.register(one))
        for one, server in zip(instances, servers, strict=True)
    ]
    table = LocationTable("job", instances[0].describe(), MAX_PARALLELISM, tuple(owners))
    proxy = start_proxy()
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table))
    keys = [f"key {number}" for number in range(30)]
    history.commit(0, *(put(key, 1) for key in keys))
    names = ("job", "lastTemperature")
    with RawClient(proxy.address) as client:
        first = changes(client, names)
        assert first.stop_group == history.ranges[0].stop == 64
        second = changes(client, names, start_group=64)
        assert second.stop_group == MAX_PARALLELISM
        assert sorted(key for _, key, _ in [*pairs(first), *pairs(second)]) == sorted(keys)
        number = send_poll(client, names, from_epoch=1, wait_ms=10_000)
        history.commit(1, put(next(key for _, key, _ in pairs(first)), 2))
        answer = client.answer_to(number)
        assert isinstance(answer, Changes) and len(pairs(answer)) == 1
        late = changes(client, names, from_epoch=2, wait_ms=30)
        assert late.runs == ()


def test_polls_at_a_proxy_leave_its_gets_a_connection(
    tmp_path: Path, registry: StateRegistry, start_server: ServerFactory, start_proxy: Callable[..., Any]
) -> None:
    """A server reads 1000 unanswered requests of a connection and then stops."""
    history = History(tmp_path / "one")
    server = start_server(max_requests_per_connection=5)
    (instance,) = history.instances()
    owner = Owner(KeyGroupRange(0, MAX_PARALLELISM), *server.address, registry.register(instance))
    table = LocationTable("job", instance.describe(), MAX_PARALLELISM, (owner,))
    proxy = start_proxy()
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table))
    names = ("job", "lastTemperature")
    with RawClient(proxy.address) as client:
        for _ in range(10):
            send_poll(client, names, wait_ms=500)
        wait_until(lambda: server._endpoint.in_flight == 5, "the server has read what it takes")
        client.sock.sendall(client.connection.send(Get(99, 5000, names, None, {}, ("JFK",))))
        assert client.answer_to(99)


def test_polls_of_a_client_that_reads_nothing_wait_as_requests(
    history: History, registry: StateRegistry, start_server: ServerFactory
) -> None:
    """All of them are answered in the end, and other clients at once."""
    (instance,) = history.instances()
    state_id = registry.register(instance)
    server = start_server(max_frame=1 << 16, unread_timeout_s=20.0)
    history.commit(0, *(put(f"key {number}", "x" * 1000) for number in range(60)))
    with RawClient(server.address) as slow, RawClient(server.address) as other:
        numbers = [send_poll(slow, state_id, max_bytes=1 << 16) for _ in range(200)]
        assert pairs(changes(other, state_id))
        answers = [slow.answer_to(number) for number in numbers]
    assert all(isinstance(answer, Changes) and answer.runs for answer in answers)
