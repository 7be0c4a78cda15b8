"""Laws of the client proxy, over real sockets and with real state servers behind it."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest

from qstate.client import QueryableStateClient
from qstate.errors import FailureCode, UnknownKeyGroupLocation
from qstate.keys import KeyGroupRange, key_group
from qstate.protocol.limits import MAX_ENTRIES
from qstate.protocol.messages import Description, Failure, Location, Pong, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.routing.location import Owner
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.sharing.forwarded import FIRST
from qstate.runtime.serving.state_server import StateServer
from tests.closed_port import closed_port
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import BrokenOracle, PendingOracle, RefusingOracle, TableOracle, owner, table
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, failure_code, value, wait_until
from tests.runtime.serving.readers import EVERYTHING, MAX_PARALLELISM, DictReader, GatedReader, instance

TARGET = ("job", "lastTemperature")
ENTRIES = {f"key {number}": float(number) for number in range(100)}
LOWER, UPPER = KeyGroupRange(0, 64), KeyGroupRange(64, MAX_PARALLELISM)


def serve(registry: StateRegistry, server: StateServer, served: StateInstance) -> Owner:
    return owner(served, server.address, registry.register(served))


@pytest.fixture
def served() -> StateInstance:
    return instance(DictReader(ENTRIES))


def test_keys_are_split_over_their_owners_and_merged_in_order(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    lower, upper = (instance(DictReader(ENTRIES, epoch), key_groups=part) for epoch, part in ((1, LOWER), (2, UPPER)))
    owners = serve(registry, start_server(), lower), serve(registry, start_server(), upper)
    proxy = start_proxy()
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(lower, *owners)))
    with RawClient(proxy.address) as client:
        answer = client.get(TARGET, *ENTRIES)
    assert isinstance(answer, Values)
    assert answer.results == tuple(value(number) for number in ENTRIES.values())
    assert answer.epochs == tuple(1 if key_group(key, MAX_PARALLELISM) in LOWER else 2 for key in ENTRIES)
    assert set(answer.epochs) == {1, 2}


def test_job_is_unknown_without_an_oracle_and_known_with_one(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    oracle = TableOracle(lastTemperature=table(served, serve(registry, start_server(), served)))
    proxy = start_proxy()
    with RawClient(proxy.address) as client:
        for known in (False, True, False):
            proxy.set_location_oracle("job", oracle if known else None)
            assert proxy.location_oracle("job") is (oracle if known else None)
            answers = client.get(TARGET, "key 1"), client.locate(*TARGET), client.describe("job")
            jobs = client.describe(None)
            assert isinstance(jobs, Description) and jobs.entries == (({"job": "job"},) if known else ())
            if known:
                assert [type(answer) for answer in answers] == [Values, Location, Description]
            else:
                assert {failure_code(answer) for answer in answers} == {FailureCode.UNKNOWN_JOB}


def test_unknown_state_is_fatal_and_looked_up_each_time(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    oracle = TableOracle()
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert failure_code(client.get(TARGET, "key 1")) == FailureCode.UNKNOWN_STATE
        assert failure_code(client.locate(*TARGET)) == FailureCode.UNKNOWN_STATE
        # A state appears when its function opens it.
        oracle.tables["lastTemperature"] = table(served, serve(registry, start_server(), served))
        assert isinstance(client.get(TARGET, "key 1"), Values)


def test_stale_state_id_after_a_restart_is_looked_up_without_the_client_noticing(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    server = start_server()
    old = serve(registry, server, served)
    oracle = TableOracle(lastTemperature=table(served, old))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        registry.unregister(old.state_id)
        restored = instance(DictReader({"key 1": 100.0}))
        oracle.tables["lastTemperature"] = table(restored, serve(registry, server, restored))
        answer = client.get(TARGET, "key 1")
    assert isinstance(answer, Values) and answer.results == (value(100.0),)
    assert oracle.asked == 2


def test_lost_server_is_replaced_when_the_oracle_knows_its_successor(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    first, second = start_server(), start_server()
    oracle = TableOracle(lastTemperature=table(served, serve(registry, first, served)))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)
        first.shutdown(0.0)
        number = client.send_get(TARGET, "key 1")
        oracle.tables["lastTemperature"] = table(served, serve(registry, second, served))
        assert isinstance(client.answer_to(number), Values)


def test_request_to_a_server_that_shuts_down_is_sent_to_another(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    reader = GatedReader(ENTRIES, gated=["key 1"])
    first, second = start_server(), start_server()
    oracle = TableOracle(lastTemperature=table(served, serve(registry, first, instance(reader))))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        number = client.send_get(TARGET, "key 1")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        oracle.tables["lastTemperature"] = table(served, serve(registry, second, served))
        first.shutdown(0.0)
        assert isinstance(client.answer_to(number), Values)
        reader.gate.set()


def test_keys_without_an_owner_wait_for_one_until_the_deadline(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    lower, upper = (instance(DictReader(ENTRIES), key_groups=part) for part in (LOWER, UPPER))
    server = start_server()
    owners = serve(registry, server, lower), serve(registry, server, upper)
    oracle = TableOracle(lastTemperature=table(lower, owners[0]))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    owned = next(key for key in ENTRIES if key_group(key, MAX_PARALLELISM) in LOWER)
    homeless = next(key for key in ENTRIES if key_group(key, MAX_PARALLELISM) in UPPER)
    with RawClient(proxy.address) as client:
        early = client.get(TARGET, owned, homeless, deadline_ms=1000)
        assert isinstance(early, Values)
        assert early.results == (value(ENTRIES[owned]), FailureCode.UNKNOWN_KEY_GROUP_LOCATION)
        number = client.send_get(TARGET, homeless)
        oracle.tables["lastTemperature"] = table(lower, *owners)
        answer = client.answer_to(number)
    assert isinstance(answer, Values) and answer.results == (value(ENTRIES[homeless]),)


@pytest.mark.parametrize("host", ["127.0.0.1", "host.invalid"])
def test_unreachable_owner_is_no_owner_within_the_deadline(
    start_proxy: ProxyFactory, served: StateInstance, host: str
) -> None:
    proxy = start_proxy()
    with closed_port() as port:
        proxy.set_location_oracle(
            "job", TableOracle(lastTemperature=table(served, Owner(EVERYTHING, host, port, b"1" * 16)))
        )
        with RawClient(proxy.address) as client:
            started = time.monotonic()
            assert failure_code(client.get(TARGET, "key 1", deadline_ms=300)) in (
                FailureCode.UNKNOWN_KEY_GROUP_LOCATION,
                FailureCode.DEADLINE_EXCEEDED,  # the look-up of an unknown name may take longer
            )
            assert time.monotonic() - started < PATIENCE_S
            assert isinstance(client.ping(), Pong)


def test_owner_is_found_by_name(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    # The name may also mean ::1, where no server listens.
    here = serve(registry, start_server(), served)
    proxy = start_proxy()
    named = Owner(here.key_groups, "localhost", here.port, here.state_id)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, named)))
    with RawClient(proxy.address) as client:
        assert isinstance(client.get(TARGET, "key 1"), Values)


def test_owner_that_never_answers_delays_no_other_requests(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    proxy = start_proxy()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = Owner(EVERYTHING, "127.0.0.1", mute.getsockname()[1], b"1" * 16)
        proxy.set_location_oracle("mute", TableOracle(lastTemperature=table(served, silent)))
        proxy.set_location_oracle(
            "job", TableOracle(lastTemperature=table(served, serve(registry, start_server(), served)))
        )
        with RawClient(proxy.address) as client:
            held = client.send_get(("mute", "lastTemperature"), "key 1", deadline_ms=100)
            assert isinstance(client.get(TARGET, "key 1"), Values)
            assert failure_code(client.answer_to(held)) == FailureCode.DEADLINE_EXCEEDED


def test_server_that_breaks_the_protocol_loses_only_its_connection(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    proxy = start_proxy()
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        wrong = Owner(EVERYTHING, "127.0.0.1", impostor.getsockname()[1], b"1" * 16)
        oracle = TableOracle(lastTemperature=table(served, wrong))
        proxy.set_location_oracle("job", oracle)
        with RawClient(proxy.address) as client:
            number = client.send_get(TARGET, "key 1")
            peer, _ = impostor.accept()
            oracle.tables["lastTemperature"] = table(served, serve(registry, start_server(), served))
            with peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                assert isinstance(client.answer_to(number), Values)


def test_token_is_presented_to_the_servers(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    oracle = TableOracle(lastTemperature=table(served, serve(registry, start_server(token=b"secret"), served)))
    for token, expected in ((b"secret", Values), (b"other", Failure)):
        proxy = start_proxy(token=token)
        proxy.set_location_oracle("job", oracle)
        with RawClient(proxy.address, token=token) as client:
            answer = client.get(TARGET, "key 1", deadline_ms=300)
        assert type(answer) is expected
    assert failure_code(answer) == FailureCode.UNKNOWN_KEY_GROUP_LOCATION, "the client has done nothing wrong"


def test_waiting_requests_share_one_lookup(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    oracle = PendingOracle()
    proxy = start_proxy(network_threads=2)
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as one, RawClient(proxy.address) as other:
        waiting = [(client, client.send_get(TARGET, "key 1")) for client in (one, other) for _ in range(10)]
        assert oracle.asked.acquire(timeout=PATIENCE_S)
        assert isinstance(one.ping(), Pong) and isinstance(other.ping(), Pong)  # so all gets have been read
        oracle.locating[0](table(served, serve(registry, start_server(), served)))
        assert all(isinstance(client.answer_to(number), Values) for client, number in waiting)
        assert isinstance(one.get(TARGET, "key 1"), Values)
    assert len(oracle.locating) == 1


def test_silent_oracle_costs_the_deadline_and_its_late_answer_is_used(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    oracle = PendingOracle()
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert failure_code(client.get(TARGET, "key 1", deadline_ms=30)) == FailureCode.DEADLINE_EXCEEDED
        assert failure_code(client.locate(*TARGET, deadline_ms=30)) == FailureCode.DEADLINE_EXCEEDED
        assert failure_code(client.describe("job", deadline_ms=30)) == FailureCode.DEADLINE_EXCEEDED
        # One lookup that both requests share, and one describe.
        assert oracle.asked.acquire(timeout=PATIENCE_S) and oracle.asked.acquire(timeout=PATIENCE_S)
        oracle.describing[0]([])
        oracle.locating[0](table(served, serve(registry, start_server(), served)))
        assert isinstance(client.get(TARGET, "key 1"), Values)


def test_broken_oracle_is_internal_and_one_without_an_answer_yet_is_asked_again(
    registry: StateRegistry,
    start_server: ServerFactory,
    start_proxy: ProxyFactory,
    served: StateInstance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy = start_proxy()
    with RawClient(proxy.address) as client:
        proxy.set_location_oracle("job", BrokenOracle())
        for answer in (client.get(TARGET, "key 1"), client.locate(*TARGET), client.describe("job")):
            assert failure_code(answer) == FailureCode.INTERNAL
        assert "a bug in an oracle" in caplog.text
        assert {record.args for record in caplog.records if "oracle of job" in record.msg} == {("job",)}
        proxy.set_location_oracle("job", RefusingOracle())
        for answer in (client.get(TARGET, "key 1"), client.locate(*TARGET), client.describe("job")):
            assert failure_code(answer) == FailureCode.UNKNOWN_STATE
        oracle = TableOracle(lastTemperature=UnknownKeyGroupLocation(host="driver"))
        proxy.set_location_oracle("job", oracle)
        assert failure_code(client.get(TARGET, "key 1", deadline_ms=1000)) == FailureCode.UNKNOWN_KEY_GROUP_LOCATION
        number = client.send_get(TARGET, "key 1")
        wait_until(lambda: oracle.asked >= 3, "asking the oracle again")
        oracle.tables["lastTemperature"] = table(served, serve(registry, start_server(), served))
        assert isinstance(client.answer_to(number), Values)


def test_clients_of_a_proxy_share_its_connection_to_a_server(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, served: StateInstance
) -> None:
    statistics = InMemoryStatistics()
    oracle = TableOracle(lastTemperature=table(served, serve(registry, start_server(statistics), served)))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    for _ in range(3):
        with RawClient(proxy.address) as client:
            assert isinstance(client.get(TARGET, "key 1"), Values)
    assert statistics.snapshot().connections_accepted == 1


def test_proxy_shutdown_lets_requests_in_flight_finish(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="qstate")
    reader = GatedReader(ENTRIES, gated=["key 1"])
    served = instance(reader)
    oracle = TableOracle(lastTemperature=table(served, serve(registry, start_server(), served)))
    proxy = start_proxy()
    proxy.set_location_oracle("job", oracle)
    assert f"Started the Queryable State Proxy Server @ 127.0.0.1:{proxy.address[1]}" in caplog.text
    with RawClient(proxy.address) as client:
        slow = client.send_get(TARGET, "key 1")
        assert reader.entered.acquire(timeout=PATIENCE_S)
        ending = threading.Thread(target=proxy.shutdown, args=(PATIENCE_S,))
        ending.start()
        refused = FailureCode.SHUTTING_DOWN
        wait_until(lambda: isinstance(client.get(TARGET, "key 2"), Failure), "refusing new requests")
        assert failure_code(client.get(TARGET, "key 2")) == refused
        reader.gate.set()
        assert isinstance(client.answer_to(slow), Values)
        assert client.receive_close_notice().code == refused
        ending.join(PATIENCE_S)
        assert not ending.is_alive()


def test_values_of_several_owners_are_collected_up_to_a_frame(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    entries = dict.fromkeys(ENTRIES, "x" * 100)
    lower, upper = (instance(DictReader(entries), key_groups=part) for part in (LOWER, UPPER))
    owners = serve(registry, start_server(max_frame=8192), lower), serve(registry, start_server(max_frame=8192), upper)
    proxy = start_proxy(max_frame=8192)
    proxy.set_location_oracle("job", TableOracle(lastTemperature=table(lower, *owners)))
    with RawClient(proxy.address) as client:
        # The values of each owner fit a frame, those of both do not. The client must ask for fewer keys.
        assert failure_code(client.get(TARGET, *ENTRIES)) == FailureCode.TOO_LARGE
        keys = tuple(ENTRIES)[:50]
        answer = client.get(TARGET, *keys)
        assert isinstance(answer, Values) and len(answer.results) == 50


def test_as_many_jobs_are_described_as_a_description_has_entries(start_proxy: ProxyFactory) -> None:
    proxy = start_proxy()
    jobs = [f"job {number}" for number in range(MAX_ENTRIES)]
    for job in jobs:
        proxy.set_location_oracle(job, TableOracle())
    with RawClient(proxy.address) as client:
        found = client.describe(None)
        assert isinstance(found, Description)
        assert [entry["job"] for entry in found.entries] == sorted(jobs)
        proxy.set_location_oracle("one more", TableOracle())
        assert failure_code(client.describe(None)) == FailureCode.TOO_LARGE
        assert isinstance(client.ping(), Pong)


def test_no_owner_is_asked_for_values_that_the_client_has_no_room_for(
    registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory
) -> None:
    """A client that reads late loses no connection, and no value is sent between the servers for nothing."""
    gets, size = 12, 3 << 20
    served = instance(DictReader({"large": b"x" * size}))
    statistics = InMemoryStatistics()
    oracle = TableOracle(lastTemperature=table(served, serve(registry, start_server(statistics), served)))
    proxy = start_proxy(max_frame=4 << 20)
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address, receive_buffer=4096) as client:
        waiting = [client.send_get(TARGET, "large") for _ in range(gets)]
        wait_until(lambda: statistics.snapshot().successes > 0, "an answer of the owner")
        answers = [client.answer_to(number) for number in waiting]
    overloaded = [answer.code for answer in answers if isinstance(answer, Failure)]
    # At first it is not known how large they are.
    assert len(overloaded) < FIRST and set(overloaded) <= {FailureCode.OVERLOADED}
    assert statistics.snapshot().successes == gets


def test_a_job_of_many_states_is_described_page_by_page(start_proxy: ProxyFactory) -> None:
    served = instance(DictReader({}))
    names = [f"{'a long name ' * 20}{number:04}" for number in range(1000)]
    oracle = TableOracle(**{name: table(instance(DictReader({}), name=name)) for name in names})
    proxy = start_proxy(max_frame=65536)
    proxy.set_location_oracle("job", oracle)
    with RawClient(proxy.address) as client:
        assert failure_code(client.describe("job")) == FailureCode.TOO_LARGE
    with QueryableStateClient(*proxy.address) as reader:
        assert [state["name"] for state in reader.states("job")] == names
        assert reader.states("job")[0].keys() == served.describe().keys()
        assert reader.jobs() == ["job"]
