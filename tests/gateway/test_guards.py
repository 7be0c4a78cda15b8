"""What every request passes: names, origins, headers, and the bounds of connections."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest

from qstate.errors import Overloaded
from qstate.gateway import server
from qstate.gateway.guards import Places
from tests.gateway.running_gateway import STATE, RunningGateway, running_gateway
from tests.project.served_job import serve_history
from tests.runtime.serving.feeds import put
from tests.runtime.serving.raw_client import wait_until

PREFLIGHT = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "Authorization"}
NOBODY = ("127.0.0.1", 1)


@pytest.fixture
def idle() -> Iterator[RunningGateway]:
    """A gateway that has no proxy to ask."""
    with running_gateway(NOBODY) as gateway:
        yield gateway


def connected(gateway: RunningGateway) -> socket.socket:
    return socket.create_connection((gateway.host, gateway.port), timeout=20)


def test_every_answer_has_the_headers_that_guard_a_browser(http: httpx.Client) -> None:
    for path in ("/v1/jobs", f"{STATE}/value?key=nowhere", "/try.html", "/nothing", "/healthz"):
        headers = http.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8069", "127.0.0.1.evil.example", ""])
def test_a_name_that_is_not_its_own_is_refused_on_loopback(gateway: RunningGateway, host: str) -> None:
    answer = httpx.get(f"{gateway.url}/v1/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8069", "127.0.0.1:1", "[::1]:8069", "[::1]"])
def test_the_names_of_loopback_are_served(gateway: RunningGateway, host: str) -> None:
    assert httpx.get(f"{gateway.url}/v1/jobs", headers={"Host": host}).status_code == 200


def test_other_names_are_served_when_they_are_allowed() -> None:
    with running_gateway(NOBODY, hosts=["state.example"]) as gateway:
        assert httpx.get(f"{gateway.url}/healthz", headers={"Host": "state.example:80"}).status_code == 200
        assert httpx.get(f"{gateway.url}/healthz").status_code == 403


def test_pages_of_other_origins_may_read_only_if_they_are_allowed(http: httpx.Client) -> None:
    allowed = http.get(f"{STATE}/value?key=JFK", headers={"Origin": "https://shop.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
    assert "etag" in allowed.headers["access-control-expose-headers"].lower()
    for origin in ("https://evil.example", "http://shop.example", "null"):
        assert "access-control-allow-origin" not in http.get("/v1/jobs", headers={"Origin": origin}).headers
        assert http.options("/v1/jobs", headers={"Origin": origin, **PREFLIGHT}).status_code == 400
    assert http.options("/v1/jobs", headers={"Origin": "https://shop.example", **PREFLIGHT}).status_code == 200


def test_no_page_of_another_origin_may_read_by_default(idle: RunningGateway) -> None:
    answer = httpx.get(f"{idle.url}/healthz", headers={"Origin": "https://shop.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_addresses_behind_the_gateway_are_not_told(idle: RunningGateway) -> None:
    answer = httpx.get(f"{idle.url}/v1/jobs", timeout=20)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "UNAVAILABLE", "1")
    assert "127.0.0.1" not in answer.text


def test_a_request_that_does_not_arrive_is_cut_off(idle: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
        with closing(connected(idle)) as slow:
            slow.sendall(begun)
            assert slow.recv(1) == b""


def test_the_next_request_of_a_connection_must_arrive_too(
    idle: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    with closing(connected(idle)) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET")
        answer = b""
        while part := slow.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_head_that_is_too_large_is_refused(idle: RunningGateway) -> None:
    with closing(connected(idle)) as greedy:
        greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert greedy.recv(65536).startswith(b"HTTP/1.1 400")


HOST = b"Host: localhost\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"BREW /v1/jobs HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs HTTP/9.9\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs\r\n\r\n",
        b"GET http://evil.example/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /v1/jobs/%ff%fe%00/states HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs/%zz/states HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs/%ED%B0%AF/states HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs?timeout=%f0%28&timeout=1 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs?" + b"a&" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n" + HOST + b"Authorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
        b"GET " + STATE.encode() + b"/changes?key=JFK HTTP/1.1\r\n" + HOST + b"Last-Event-ID: a\rb\r\n\r\n",
        b"POST " + STATE.encode() + b"/values HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST "
        + STATE.encode()
        + b"/values HTTP/1.1\r\n"
        + HOST
        + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"GET " + STATE.encode() + b"/changes HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n" + HOST + UPGRADE + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
def test_hostile_bytes_harm_nobody_else(
    gateway: RunningGateway, sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    with closing(connected(gateway)) as hostile:
        hostile.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):
            answer = hostile.recv(65536)
        assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert httpx.get(f"{gateway.url}/v1/jobs").status_code == 200
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/jobs/%ff/states",
        b"/v1/jobs/%ED%A0%80/states",
        b"/v1/jobs/Z\xc3\xbcrich/states",
        STATE.encode() + b"/value?key=%ff",
        STATE.encode() + b"/value?key=Z\xc3\xbcrich",
        STATE.encode() + b"/entries?%ff=1",
        STATE.encode() + b"/changes?key=%ff",
    ],
)
def test_what_is_no_text_is_taken_for_no_other_text(gateway: RunningGateway, path: bytes) -> None:
    with closing(connected(gateway)) as asking:
        asking.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        answer = b""
        while part := asking.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert (problem["status"], problem["code"]) == (400, "MALFORMED")
    assert "percent-encoded" in problem["detail"]


@pytest.mark.parametrize("query", ["isolation", "cursor", "namespace", "limit", "column", "other"])
def test_a_failure_repeats_no_more_of_a_request_than_a_line(http: httpx.Client, query: str) -> None:
    answer = http.get(f"{STATE}/entries", params={query: "x" * 20_000})
    assert answer.status_code in (200, 400)
    assert len(answer.content) < 2000
    answer = http.get(f"{STATE}/value", params={"key": "x" * 20_000})
    assert (answer.status_code, len(answer.content) < 2000) == (404, True)


def test_too_many_requests_before_the_first_answer_are_cut_off(idle: RunningGateway) -> None:
    with closing(connected(idle)) as greedy:
        greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16)
        answer = b""
        while answer.count(b"HTTP/1.1 200") < 16:
            answer += greedy.recv(65536)
        answer = b""
        with suppress(ConnectionResetError):
            greedy.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
            while part := greedy.recv(65536):
                answer += part
        assert answer.count(b"HTTP/1.1 200") < 1000


def test_connections_beyond_the_bound_are_closed() -> None:
    with running_gateway(NOBODY, max_connections=2) as gateway:
        with closing(connected(gateway)), closing(connected(gateway)) as second:
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(65536).startswith(b"HTTP/1.1 200")
            with closing(connected(gateway)) as third, suppress(ConnectionResetError):
                third.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert third.recv(1) == b""
        assert httpx.get(f"{gateway.url}/healthz").status_code == 200


def test_a_caller_that_reads_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_TIMEOUT_S", 0.2)
    with serve_history(tmp_path, job="nyc") as (proxy, history), running_gateway(proxy, max_streams=1) as gateway:
        url = f"{gateway.url}{STATE}/changes?key=JFK"
        with closing(socket.socket()) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((gateway.host, gateway.port))
            silent.sendall(f"GET {STATE}/changes?key=JFK HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            wait_until(lambda: streams(gateway) == 1, "the only stream")
            assert httpx.get(url).json()["code"] == "OVERLOADED"
            for epoch in range(3, 300):
                history.commit(epoch, put("JFK", "x" * 100_000, state="value"))
                if not streams(gateway):
                    break
            wait_until(lambda: not streams(gateway), "the end of a stream that nobody reads")


def streams(gateway: RunningGateway) -> float:
    text = httpx.get(f"{gateway.url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("qstate_gateway_streams "))


def test_places_are_bounded_in_all_and_for_each_address() -> None:
    places = Places("streams", 4)
    for _ in range(2):
        places.enter("10.0.0.5")
    with pytest.raises(Overloaded):
        places.enter("10.0.0.5")
    places.enter("127.0.0.1")
    places.enter("127.0.0.1")
    with pytest.raises(Overloaded):
        places.enter("127.0.0.1")
    places.leave("10.0.0.5")
    places.enter("127.0.0.1")


def test_what_the_gateway_does_is_counted_without_names(http: httpx.Client) -> None:
    http.get(f"{STATE}/value?key=nowhere")
    text = http.get("/metrics").text
    route = "/v1/jobs/{job}/states/{state}/value"
    assert f'qstate_gateway_requests_total{{route="{route}",status="404"}}' in text
    assert "qstate_gateway_streams 0.0" in text
    assert "lastTemperature" not in text


def test_the_gateway_says_that_it_is_alive(http: httpx.Client) -> None:
    assert (http.get("/healthz").status_code, http.get("/healthz").text) == (200, "ok\n")
