"""The end of a gateway, and what its callers see of it; a thousand of them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from qstate.gateway import feeds, server
from tests.gateway.event_stream import events_in, stream
from tests.gateway.page.served import TEMPERATURE, Served, ServedJob
from tests.gateway.running_gateway import STATE, RunningGateway, running_gateway
from tests.project.served_job import serve_history
from tests.runtime.job.running_job import Background
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.raw_client import wait_until

CLIENTS = 1000
TIMEOUT_S = 60.0
Fed = tuple[RunningGateway, History]


@contextmanager
def process(proxy: tuple[str, int], port: str = "0") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`qstate gateway` as a process of its own, and its URL."""
    command = [sys.executable, "-m", "qstate.cli.main", "gateway", "--port", port, "--proxy", "{}:{}".format(*proxy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            url = started.stdout.readline().split()[1].rstrip(";")
            wait_until(lambda: _answers(url), "the start of the gateway")
            yield started, url
        finally:
            started.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_end_of_the_gateway_answers_requests_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "REQUESTS_S", 0.1)
    with serve_history(tmp_path, job="nyc") as (proxy, _):
        gateway = RunningGateway(proxy)
        demand = "key=JFK&isolation=committed&min_epoch=99&wait=20&timeout=20"
        waiting = Background(lambda: httpx.get(f"{gateway.url}{STATE}/value?{demand}", timeout=30))
        wait_until(lambda: gateway.server.server_state.connections, "the request")
        assert not waiting.ended(0.5)
        gateway.stop()
        answer = waiting.result()
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "SHUTTING_DOWN", "1")
    assert "Traceback" not in caplog.text


def test_the_end_of_the_gateway_ends_streams_with_a_time_to_come_back(tmp_path: Path) -> None:
    with serve_history(tmp_path, job="nyc") as (proxy, _), process(proxy) as (started, url):
        with httpx.Client(timeout=20) as client, client.stream("GET", f"{url}{STATE}/changes?key=JFK") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            next(events_in(lines))
            began = time.monotonic()
            started.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert [line for line in rest if line][-1] == "retry: 2000"
        assert started.wait(20) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5


def test_streams_go_on_after_a_gateway_was_killed(tmp_path: Path) -> None:
    with serve_history(tmp_path, job="nyc") as (proxy, history):
        with process(proxy) as (started, url), stream(f"{url}{STATE}/changes?key=JFK") as events:
            seen = [next(events) for _ in range(3)]
            started.kill()
            with pytest.raises(httpx.TransportError):
                next(events)
        history.commit(3, put("JFK", 74.0, state="value"))
        port = url.rpartition(":")[2]
        back = {"Last-Event-ID": seen[-1].id}
        with process(proxy, port), stream(f"{url}{STATE}/changes?key=JFK", headers=back) as events:
            seen.append(next(events))
    assert [event.data["epoch"] for event in seen] == [0, 1, 2, 3]


def test_pages_go_on_when_the_job_s_processes_were_lost_and_are_back(tmp_path: Path) -> None:
    job = ServedJob("nyc", [TEMPERATURE], tmp_path)
    keys = {f"key-{number}" for number in range(40)}
    job.put(lastTemperature=dict.fromkeys(keys, 1.5))
    with closing(job), ExitStack() as serving:
        served = Served([job])
        serving.callback(served.close)
        with running_gateway(served.proxy.address) as gateway, httpx.Client(base_url=gateway.url, timeout=20) as http:
            page = http.get(f"{STATE}/entries?limit=25").json()
            serving.close()
            rest = f"{STATE}/entries?timeout=1&cursor={page['cursor']}"
            lost = http.get(rest)
            assert (lost.status_code, lost.json()["code"]) in ((503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED"))
            serving.callback(Served([job], ports=str(served.proxy.address[1])).close)
            found = [*page["entries"], *http.get(rest).json()["entries"]]
            assert sorted(entry["key"] for entry in found) == sorted(keys)


def test_streams_say_that_the_job_is_away_and_go_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 0.2)
    job = ServedJob("nyc", [TEMPERATURE], tmp_path)
    job.put(lastTemperature={"JFK": 71.5})
    with closing(job), ExitStack() as serving:
        served = Served([job])
        serving.callback(served.close)
        with running_gateway(served.proxy.address) as gateway, stream(f"{gateway.url}{STATE}/changes") as events:
            first = next(events)
            job.put(lastTemperature={"JFK": 72.5})
            second = next(events)
            serving.close()
            waiting = next(events)
            assert (waiting.name, waiting.id) == ("waiting", second.id)
            assert waiting.data["code"] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            serving.callback(Served([job], ports=str(served.proxy.address[1])).close)
            back = next(events)
            assert (back.name, back.id, back.data) == ("progress", second.id, {"epoch": 1, "complete": 1})
            job.put(lastTemperature={"JFK": 73.5})
            last = next(events)
            values = [event.data["changes"][0]["value"] for event in (first, second, last)]
            assert values == [71.5, 72.5, 73.5]


def test_a_thousand_clients_of_one_gateway_see_every_change_once(history: Fed) -> None:
    gateway, committed = history
    last = 5

    async def read(client: httpx.AsyncClient, ready: asyncio.Semaphore) -> list[float]:
        async with client.stream("GET", f"{gateway.url}{STATE}/changes?key=JFK") as answer:
            lines = [line async for line in _until(answer.aiter_lines(), f'"epoch":{last}', ready)]
        return [change["value"] for event in events_in(iter(lines)) for change in event.data["changes"]]

    async def scenario() -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        ready = asyncio.Semaphore(0)
        async with httpx.AsyncClient(limits=limits, timeout=TIMEOUT_S) as client:
            reading = [asyncio.ensure_future(read(client, ready)) for _ in range(CLIENTS)]
            for _ in reading:
                await ready.acquire()
            assert _metric(gateway, "streams") == CLIENTS
            assert _metric(gateway, "subscriptions") == 1
            for epoch in range(3, last + 1):
                committed.commit(epoch, put("JFK", 71.0 + epoch, state="value"))
            found = await asyncio.gather(*reading)
        assert all(values == [71.06, 72.0, 73.0, 74.0, 75.0, 76.0] for values in found)

    asyncio.run(scenario())
    wait_until(lambda: _metric(gateway, "streams") == 0, "the end of all streams")


async def _until(lines: AsyncIterator[str], last: str, ready: asyncio.Semaphore) -> AsyncIterator[str]:
    """The lines up to the event that has this; says when the first event is there."""
    first = True
    async for line in lines:
        yield line
        if first and line.startswith("data:"):
            first = False
            ready.release()
        if last in line:
            yield ""
            return


def _metric(gateway: RunningGateway, name: str) -> float:
    text = httpx.get(f"{gateway.url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"qstate_gateway_{name} "))
