"""Changes over a WebSocket: the same events as server-sent ones."""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from qstate.host.line_limit import MOST_LINES
from tests.gateway.running_gateway import STATE, RunningGateway, running_gateway
from tests.project.served_job import serve
from tests.runtime.serving.feeds import History, put

Served = tuple[RunningGateway, History]


def socket_to(gateway: RunningGateway, path: str = f"{STATE}/changes?key=JFK", **options: Any) -> ClientConnection:
    return connect(f"ws://{gateway.host}:{gateway.port}{path}", proxy=None, open_timeout=20, **options)


def message(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=20))
    return found


def test_each_event_is_a_message(history: Served) -> None:
    gateway, committed = history
    with socket_to(gateway) as socket:
        found = [message(socket) for _ in range(3)]
        assert [one["event"] for one in found] == ["snapshot", "changes", "changes"]
        assert found[0]["data"]["changes"][0]["value"] == 71.06
        committed.commit(3, put("JFK", 74.0, state="value"))
        assert message(socket)["data"]["changes"][0]["value"] == 74.0
    with socket_to(gateway, f"{STATE}/changes?key=JFK&after={found[-1]['id']}") as socket:
        assert message(socket)["data"]["epoch"] == 3


def test_a_stream_that_cannot_begin_refuses_the_handshake(history: Served, caplog: pytest.LogCaptureFixture) -> None:
    paths = ("/v1/jobs/nyc/states/other/changes", f"{STATE}/changes?after=x", f"{STATE}/changes?key=%ff")
    for path, status in zip(paths, (404, 400, 400), strict=True):
        with pytest.raises(InvalidStatus) as refused:
            socket_to(history[0], path)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"")["status"] == status
    assert "handshake" not in caplog.text


def test_what_a_caller_says_is_ignored_and_bounded(history: Served) -> None:
    with socket_to(history[0]) as socket:
        socket.send("hello")
        assert message(socket)["event"] == "snapshot"
        socket.send("x" * 100_000)
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize(("origin", "good"), [("http://{own}", True), ("http://evil.example", False), ("null", False)])
def test_pages_of_other_origins_may_not_connect(history: Served, origin: str, good: bool) -> None:
    gateway, _ = history
    own = origin.format(own=f"{gateway.host}:{gateway.port}")
    if good:
        with socket_to(gateway, origin=own) as socket:
            assert message(socket)["event"] == "snapshot"
    else:
        with pytest.raises(InvalidStatus) as refused:
            socket_to(gateway, origin=own)
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body or b"")["code"] == "FORBIDDEN"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningGateway]:
    with serve(tmp_path, token=b"se/cret?") as proxy, running_gateway(proxy) as gateway:
        yield gateway


def test_a_browser_gives_its_token_as_a_subprotocol(guarded: RunningGateway) -> None:
    token = urlsafe_b64encode(b"se/cret?").decode().rstrip("=")
    for protocols, status in ((None, 401), ([f"bearer.{token}x"], 401), (["bearer."], 400), ([f"bearer.{token}"], 501)):
        with pytest.raises(InvalidStatus) as refused:
            # This state has no changes: with a good token, that is the answer.
            socket_to(guarded, subprotocols=protocols)
        assert refused.value.response.status_code == status
    assert "qstate.v1" not in str(refused.value.response.headers)


def test_a_subprotocol_of_the_form_is_answered(history: Served) -> None:
    with socket_to(history[0], subprotocols=["bearer.eA", "qstate.v1"]) as socket:
        assert socket.subprotocol == "qstate.v1"


def test_the_end_of_the_gateway_closes_with_a_code_to_come_back(history: Served) -> None:
    gateway, _ = history
    with socket_to(gateway) as socket:
        message(socket)
        gateway.stop()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_what_a_caller_asks_for_is_in_no_log(history: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket_to(history[0], f"{STATE}/changes?key=a-secret-key") as socket:
        assert message(socket)["event"] == "snapshot"
    with pytest.raises(InvalidStatus):
        socket_to(history[0], "/v1/jobs/nyc/states/other/changes?key=a-secret-key")
    assert "a-secret-key" not in caplog.text


def test_what_callers_do_fills_no_log(history: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3 * MOST_LINES):
        with create_connection((history[0].host, history[0].port), timeout=20) as bad:
            bad.sendall(b"no request\r\n\r\n")
            assert bad.recv(65536).startswith(b"HTTP/1.1 400")
        with socket_to(history[0]):
            pass
    assert 0 < len(caplog.records) <= 2 * MOST_LINES
