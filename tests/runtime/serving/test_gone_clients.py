"""Laws of clients that go or wait: what nobody wants any more is given up, and who waits takes nothing from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstate.errors import FailureCode
from qstate.protocol.messages import Describe, Locate, Values
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import PendingOracle, TableOracle, owner, table
from tests.runtime.serving.raw_client import RawClient, failure_code, wait_until
from tests.runtime.serving.test_polls import send_poll

MOST = 40
#: The longest wait that a request can name.
WEEKS_MS = (1 << 32) - 1


class Served:
    """The state of a history without further commits, at a proxy and a server that take few requests at a time."""

    def __init__(self, history: History, registry: StateRegistry, server: StateServer, proxy: ClientProxy) -> None:
        history.commit(0, put("JFK", 1))
        (instance,) = history.instances()
        self.state_id = registry.register(instance)
        self.server, self.proxy = server, proxy
        proxy.set_location_oracle(
            "job", TableOracle(lastTemperature=table(instance, owner(instance, server.address, self.state_id)))
        )

    @property
    def in_flight(self) -> int:
        return self.server._endpoint.in_flight + self.proxy._endpoint.in_flight


@pytest.fixture
def served(tmp_path: Path, registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory) -> Served:
    options: dict[str, Any] = {"max_queued": MOST, "unread_timeout_s": 0.1}
    return Served(History(tmp_path / "checkpoint"), registry, start_server(**options), start_proxy(**options))


@pytest.fixture(params=["proxy", "owner"])
def target(request: pytest.FixtureRequest, served: Served) -> tuple[tuple[str, int], Any]:
    """Whom to ask for what."""
    if request.param == "proxy":
        return served.proxy.address, ("job", "lastTemperature")
    return served.server.address, served.state_id


def test_polls_of_clients_that_are_gone_do_not_wait(served: Served, target: tuple[tuple[str, int], Any]) -> None:
    """They could wait for weeks, and take the places of all requests."""
    address, state = target
    longest = {"from_epoch": 1, "wait_ms": WEEKS_MS, "deadline_ms": WEEKS_MS}
    for _ in range(3):
        with RawClient(address) as gone:
            for _ in range(MOST):
                send_poll(gone, state, **longest)
            wait_until(lambda: served.in_flight >= MOST, "the polls have arrived")
        wait_until(lambda: served.in_flight == 0, "the polls are given up")
    with RawClient(address) as client:
        assert isinstance(client.get(state, "JFK"), Values)


def test_polls_that_wait_keep_no_other_request_from_an_answer(
    served: Served, target: tuple[tuple[str, int], Any]
) -> None:
    address, state = target
    with RawClient(address) as waiting, RawClient(address) as client:
        for _ in range(2 * MOST):
            send_poll(waiting, state, from_epoch=1, wait_ms=WEEKS_MS, deadline_ms=WEEKS_MS)
        answers = {failure_code(waiting.answer_to(MOST + number)) for number in range(1, MOST)}
        assert answers == {FailureCode.OVERLOADED}
        for _ in range(3):
            assert isinstance(client.get(state, "JFK"), Values)
        assert client.ping()


def test_polls_of_many_keys_cost_what_they_hold(served: Served, start_server: ServerFactory) -> None:
    """The keys of a poll take more memory than its bytes, and for as long as it waits."""
    server = start_server(max_frame=65_536, max_buffered_bytes=1)  # room for two frames of requests
    keys = tuple(f"{number:04}" for number in range(8000))
    with RawClient(server.address) as waiting, RawClient(server.address) as client:
        number = send_poll(waiting, served.state_id, keys=keys, from_epoch=1, wait_ms=WEEKS_MS, deadline_ms=WEEKS_MS)
        assert failure_code(waiting.answer_to(number)) == FailureCode.OVERLOADED
        assert isinstance(client.get(served.state_id, "JFK"), Values)


def test_gets_and_look_ups_of_clients_that_are_gone_do_not_wait(served: Served) -> None:
    """For an epoch that never comes, and for an oracle that does not answer."""
    oracle = PendingOracle()
    served.proxy.set_location_oracle("silent", oracle)
    with RawClient(served.proxy.address) as gone:
        options = {"min_epoch": 1 << 40}
        for _ in range(MOST // 4):
            gone.send_get(("job", "lastTemperature"), "JFK", options=options, deadline_ms=WEEKS_MS)
            gone.send_get(("silent", "lastTemperature"), "JFK", deadline_ms=WEEKS_MS)
            number = gone.connection.next_id()
            gone.sock.sendall(gone.connection.send(Locate(number, WEEKS_MS, "silent", "lastTemperature")))
            number = gone.connection.next_id()
            gone.sock.sendall(gone.connection.send(Describe(number, WEEKS_MS, "silent")))
        wait_until(lambda: served.in_flight >= MOST, "the requests have arrived")
    wait_until(lambda: served.in_flight == 0, "the requests are given up")
    with RawClient(served.proxy.address) as client:
        assert isinstance(client.get(("job", "lastTemperature"), "JFK"), Values)
