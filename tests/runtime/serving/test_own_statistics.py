"""Laws of a statistics collector of one's own, at real servers, proxies and sockets."""

from __future__ import annotations

import logging
import threading
from collections import Counter

import pytest

from qstate.errors import FailureCode
from qstate.protocol.messages import Description, Failure, Values
from qstate.runtime.serving import ClientProxy, EndpointOptions, RequestStatistics, StateRegistry, StateServer
from qstate.runtime.serving.sharing.request_quota import BURST_S
from tests.runtime.serving.conftest import ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, wait_until
from tests.runtime.serving.readers import DictReader, instance

REPORTS = [name for name in vars(RequestStatistics) if name.startswith("report_")]


class Collector:
    """Notes every report: the open connections, the keys of each request, the durations and the codes of failures."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections = 0
        self.accepted = 0
        self.keys: list[int] = []
        self.durations: list[float] = []
        self.failures: Counter[int] = Counter()
        self.throttled_s = 0.0

    def report_active_connection(self) -> None:
        with self.lock:
            self.connections += 1
            self.accepted += 1

    def report_inactive_connection(self) -> None:
        with self.lock:
            self.connections -= 1

    def report_request(self, keys: int) -> None:
        with self.lock:
            self.keys.append(keys)

    def report_successful_request(self, duration_s: float) -> None:
        with self.lock:
            self.durations.append(duration_s)

    def report_failed_request(self, code: int) -> None:
        with self.lock:
            self.failures[code] += 1

    def report_throttled(self, seconds: float) -> None:
        with self.lock:
            self.throttled_s += seconds

    def ended(self) -> int:
        """How many requests were answered and counted; the count follows the answer."""
        with self.lock:
            return min(len(self.keys), len(self.durations) + sum(self.failures.values()))


class Raising:
    """Raises from every report; `reports` has the names of those that came."""

    def __init__(self) -> None:
        self.reports: set[str] = set()

    def _raise(self, name: str) -> None:
        self.reports.add(name)
        raise RuntimeError("a bug in a collector")

    def report_active_connection(self) -> None:
        self._raise("report_active_connection")

    def report_inactive_connection(self) -> None:
        self._raise("report_inactive_connection")

    def report_request(self, keys: int) -> None:
        self._raise("report_request")

    def report_successful_request(self, duration_s: float) -> None:
        self._raise("report_successful_request")

    def report_failed_request(self, code: int) -> None:
        self._raise("report_failed_request")

    def report_throttled(self, seconds: float) -> None:
        self._raise("report_throttled")


def test_a_server_reports_each_connection_request_and_outcome_once(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader({"a": 1.5, "b": 2.5})))
    collector = Collector()
    server = start_server(collector)
    with RawClient(server.address) as first, RawClient(server.address) as second:
        wait_until(lambda: collector.connections == 2, "reporting both connections")
        assert isinstance(first.get(state_id, "a", "b", "missing"), Values)
        assert isinstance(second.get(state_id, "a"), Values)
        assert isinstance(second.get(bytes(16), "a", "b"), Failure)
        wait_until(lambda: collector.ended() == 3, "counting every answer")
    wait_until(lambda: collector.connections == 0, "reporting the end of both connections")
    assert collector.accepted == 2
    assert sorted(collector.keys) == [1, 2, 3]
    assert len(collector.durations) == 2 and all(0 <= duration < 60 for duration in collector.durations)
    assert collector.failures == {FailureCode.UNKNOWN_STATE_ID: 1}


def test_a_refused_handshake_is_a_connection_and_a_failure_but_no_request(start_server: ServerFactory) -> None:
    collector = Collector()
    with RawClient(start_server(collector, token=b"secret").address, hello=False) as client:
        client.sock.sendall(client.connection.start())
        assert client.receive_close_notice().code == FailureCode.UNAUTHENTICATED
    wait_until(lambda: (collector.accepted, collector.connections) == (1, 0), "reporting the end of the connection")
    assert (collector.keys, collector.durations) == ([], [])
    assert collector.failures == {FailureCode.UNAUTHENTICATED: 1}


def test_a_proxy_reports_its_own_requests_and_those_to_the_server_in_its_process(registry: StateRegistry) -> None:
    served = instance(DictReader({"a": 1.5}))
    of_server, of_proxy = Collector(), Collector()
    with (
        StateServer(registry, statistics=of_server) as server,
        ClientProxy(statistics=of_proxy, local=server) as proxy,
    ):
        place = owner(served, server.address, registry.register(served))
        proxy.set_location_oracle("job", TableOracle(lastTemperature=table(served, place)))
        with RawClient(proxy.address) as client:
            for _ in range(3):  # the first waits for the location; the others are answered in the process
                assert isinstance(client.get(("job", "lastTemperature"), "a"), Values)
            assert isinstance(client.describe("job"), Description)
            wait_until(lambda: of_proxy.ended() == 4 and of_server.ended() == 3, "counting every answer")
        assert (sorted(of_proxy.keys), of_server.keys) == ([0, 1, 1, 1], [1, 1, 1])
        assert of_server.accepted == 1, "only the get that waited took a connection"


def test_a_collector_that_raises_harms_nothing_and_is_logged(
    registry: StateRegistry, start_server: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    state_id = registry.register(instance(DictReader({"a": 1.5})))
    raising = Raising()
    server = start_server(raising, query_quota=1.0)
    server.quota.charge("127.0.0.1", 2 * BURST_S)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):  # more often than the server has threads
            with RawClient(server.address) as client:
                assert isinstance(client.get(state_id, "a"), Values)
                assert isinstance(client.get(bytes(16), "a"), Failure)
        wait_until(lambda: raising.reports == set(REPORTS), "reporting every kind of event")
    lines = [record for record in caplog.records if "statistics" in record.message]
    assert lines and all(record.exc_info for record in lines)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR and record not in lines] == []


class Slow(Collector):
    """Takes as long as `gate` is closed for the first request that it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def report_request(self, keys: int) -> None:
        super().report_request(keys)
        if not self.entered.is_set():
            self.entered.set()
            assert self.gate.wait(PATIENCE_S)


def test_a_collector_that_takes_long_does_not_keep_others_from_reading_state(
    registry: StateRegistry, start_server: ServerFactory
) -> None:
    state_id = registry.register(instance(DictReader({"a": 1.5})))
    slow = Slow()
    server = start_server(slow, network_threads=2, query_threads=1)
    with RawClient(server.address) as first, RawClient(server.address) as second:
        assert isinstance(first.get(state_id, "a"), Values)
        assert slow.entered.wait(PATIENCE_S)
        assert isinstance(second.get(state_id, "a"), Values)
        slow.gate.set()
        wait_until(lambda: slow.ended() == 2, "counting both answers")


def test_options_are_those_of_a_loopback_server_on_any_port_by_default(registry: StateRegistry) -> None:
    assert (EndpointOptions().bind, EndpointOptions().ports) == ("127.0.0.1", "0")
    with StateServer(registry) as server, ClientProxy() as proxy:
        assert server.address[0] == proxy.address[0] == "127.0.0.1"
        assert 0 not in (server.address[1], proxy.address[1])
