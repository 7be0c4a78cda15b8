"""Laws of cancelling: who gives a request up frees what it holds, at the proxy and at the owner."""

from __future__ import annotations

import asyncio

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import FailureCode, QueryCancelled
from qstate.protocol.codec import encode, frame
from qstate.protocol.messages import Cancel, Values
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.conftest import ProxyFactory, ServerFactory
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import PATIENCE_S, RawClient, failure_code, wait_until
from tests.runtime.serving.readers import GatedReader, instance

JOB, STATE = "job", "lastTemperature"
FOR_LONG_MS = 600_000


class Served:
    """A proxy before a state server whose one query thread reads the key "slow" until the gate opens."""

    def __init__(self, registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory) -> None:
        self.reader = GatedReader({"a": 1, "slow": 2}, gated=["slow"])
        self.statistics = InMemoryStatistics()
        found = instance(self.reader)
        state_id = registry.register(found)
        self.server: StateServer = start_server(self.statistics)
        self.proxy: ClientProxy = start_proxy()
        at = owner(found, self.server.address, state_id)
        self.proxy.set_location_oracle(JOB, TableOracle(lastTemperature=table(found, at), empty=table(found)))
        self.state_id = state_id

    def is_busy(self) -> None:
        """Wait until the query thread reads."""
        assert self.reader.entered.acquire(timeout=PATIENCE_S)

    def holds(self, count: int) -> None:
        """Wait until the server has so many requests: what has not arrived there need not be cancelled there."""
        wait_until(lambda: self.server._endpoint.in_flight == count, f"{count} requests at the server")

    def await_cancel(self, count: int) -> None:
        """Wait until so many of the requests that wait at the state server were cancelled."""

        def arrived() -> bool:
            calls = [
                call for each in self.server._endpoint._places.connections for call in [*each.calls_in_flight.values()]
            ]
            return sum(call.cancelled for call in calls) == count

        wait_until(arrived, "cancelling at the owner")

    @property
    def cancelled(self) -> int:
        return self.statistics.snapshot().failures.get(FailureCode.CANCELLED, 0)


@pytest.fixture
def served(registry: StateRegistry, start_server: ServerFactory, start_proxy: ProxyFactory) -> Served:
    return Served(registry, start_server, start_proxy)


def cancel(client: RawClient, number: int) -> None:
    client.sock.sendall(frame(encode(Cancel(number))))


def test_a_cancelled_get_is_not_read(served: Served) -> None:
    with RawClient(served.server.address) as client:
        slow = client.send_get(served.state_id, "slow")
        served.is_busy()
        waiting = client.send_get(served.state_id, "a", deadline_ms=FOR_LONG_MS)
        cancel(client, waiting)
        cancel(client, slow)
        client.ping()
        served.reader.gate.set()
        assert failure_code(client.answer_to(waiting)) == FailureCode.CANCELLED
        assert isinstance(client.answer_to(slow), Values)
    assert served.reader.order == ["slow"]


def test_a_proxy_cancels_what_it_has_asked_an_owner_for(served: Served) -> None:
    with RawClient(served.proxy.address) as client, RawClient(served.server.address) as busy:
        busy.send_get(served.state_id, "slow")
        served.is_busy()
        number = client.send_get((JOB, STATE), "a", deadline_ms=FOR_LONG_MS)
        served.holds(2)
        cancel(client, number)
        assert failure_code(client.answer_to(number)) == FailureCode.CANCELLED
        served.await_cancel(1)
        served.reader.gate.set()
        wait_until(lambda: served.cancelled == 1, "the owner's answer")


def test_a_future_of_the_synchronous_client_can_be_cancelled(served: Served) -> None:
    with QueryableStateClient(*served.proxy.address, direct=False, timeout_s=60) as client:
        assert client.get(JOB, STATE, "a").value() == 1
        slow = client.submit(JOB, STATE, "slow")
        assert not slow.done()
        served.is_busy()
        waiting = client.submit(JOB, STATE, "a")
        served.holds(2)
        assert waiting.cancel() and not waiting.cancel()
        with pytest.raises(QueryCancelled):
            waiting.result()
        served.await_cancel(1)
        served.reader.gate.set()
        assert slow.result().value() == 2
        assert not slow.cancel()
        wait_until(lambda: served.cancelled == 1, "cancelling at the owner")
        assert client.get(JOB, STATE, "a").value() == 1


def test_a_task_of_the_asyncio_client_that_is_cancelled_cancels_its_request(served: Served) -> None:
    async def run() -> None:
        async with await AsyncQueryableStateClient.connect(*served.proxy.address, direct=False) as client:
            assert (await client.get(JOB, STATE, "a", timeout_s=60)).value() == 1
            slow = asyncio.ensure_future(client.get(JOB, STATE, "slow", timeout_s=60))
            await asyncio.to_thread(served.is_busy)
            asks = (client.get(JOB, STATE, "a", timeout_s=60), client.get_many(JOB, STATE, ["a"], timeout_s=60))
            for waiting, ask in enumerate(asks, start=1):
                task = asyncio.ensure_future(ask)
                await asyncio.to_thread(served.holds, 1 + waiting)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(served.await_cancel, 2)
            served.reader.gate.set()
            assert (await slow).value() == 2
            await asyncio.to_thread(wait_until, lambda: served.cancelled == 2, "cancelling at the owner")
            assert (await client.get(JOB, STATE, "a", timeout_s=60)).value() == 1

    asyncio.run(run())
