"""Callers that read nothing, read slowly, or send too much: what a gateway holds for them is bounded."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from qstate.gateway import server
from tests.gateway.running_gateway import STATE, running_gateway
from tests.gateway.test_lives import process
from tests.project.served_job import serve_history
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.raw_client import wait_until

SLOW = 1000
MIB = 1 << 20
STREAM = f"GET {STATE}/changes?key=JFK HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
UPGRADE = (
    f"GET {STATE}/changes?key=JFK HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
POST = f"POST {STATE}/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[tuple[str, int], History]]:
    with serve_history(tmp_path, job="nyc") as found:
        yield found


def small_socket(address: tuple[str, int]) -> socket.socket:
    """A connection whose peer can send little ahead."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.settimeout(20)
    found.connect(address)
    return found


def metric(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=20).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"qstate_gateway_{name} "))


def answer(sent: socket.socket) -> bytes:
    """All that comes until the end."""
    found = b""
    with suppress(ConnectionError):
        while part := sent.recv(65536):
            found += part
    return found


def test_a_websocket_that_is_never_read_is_cut_off(
    served: tuple[tuple[str, int], History], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNREAD_TIMEOUT_S", 0.2)
    proxy, history = served
    with running_gateway(proxy) as gateway, closing(small_socket((gateway.host, gateway.port))) as silent:
        silent.sendall(UPGRADE)
        wait_until(lambda: metric(gateway.url, "streams") == 1, "the stream")
        for epoch in range(3, 200):
            history.commit(epoch, put("JFK", "x" * 400_000, state="value"))
            if not metric(gateway.url, "streams"):
                break
        wait_until(lambda: not metric(gateway.url, "streams"), "the end of a WebSocket that nobody reads")
        assert httpx.get(f"{gateway.url}{STATE}/value?key=JFK").status_code == 200


def test_a_thousand_that_read_nothing_cost_little_and_delay_nobody(
    served: tuple[tuple[str, int], History],
) -> None:
    """Each change is sent to all; what they do not take stays one copy, up to the bounds of the feed."""
    proxy, history = served
    with process(proxy) as (started, url):
        host, _, port = url.rpartition("/")[2].rpartition(":")
        gateway = psutil.Process(started.pid)
        slow = [small_socket((host, int(port))) for _ in range(SLOW)]
        try:
            for one in slow:
                one.sendall(STREAM)
            wait_until(lambda: metric(url, "streams") == SLOW, "a thousand streams")
            before = gateway.memory_info().rss
            with httpx.stream("GET", f"{url}{STATE}/changes?key=JFK", timeout=30) as reader:
                lines = reader.iter_lines()
                for epoch in range(3, 13):
                    history.commit(epoch, put("JFK", "x" * 40_000 + str(epoch), state="value"))
                    assert any(f'"epoch":{epoch}' in line for line in lines)
            assert metric(url, "subscriptions") == 1
            grown = gateway.memory_info().rss - before
            assert grown < 96 * MIB, f"{grown / MIB:.0f} MiB for {SLOW} streams"
        finally:
            for one in slow:
                one.close()
        wait_until(lambda: not metric(url, "streams"), "the end of all streams")


def test_a_huge_body_is_refused_before_it_is_read(served: tuple[tuple[str, int], History]) -> None:
    with process(served[0]) as (started, url):
        host, _, port = url.rpartition("/")[2].rpartition(":")
        gateway = psutil.Process(started.pid)
        before = gateway.memory_info().rss
        for head in (b"Content-Length: 1073741824\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            with closing(socket.create_connection((host, int(port)), 20)) as greedy:
                piece = os.urandom(MIB)
                piece = piece if b"Length" in head else b"100000\r\n" + piece + b"\r\n"
                greedy.sendall(POST + head + piece + piece)
                assert greedy.recv(65536).startswith(b"HTTP/1.1 413")
                greedy.settimeout(0.5)
                with suppress(ConnectionError, TimeoutError):
                    for _ in range(64):
                        greedy.sendall(piece)
        assert gateway.memory_info().rss - before < 32 * MIB
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_floods_of_heads_are_cut_off(served: tuple[tuple[str, int], History]) -> None:
    """Very many headers, and a head that never ends, from many at a time."""
    with running_gateway(served[0]) as gateway:
        floods = [socket.create_connection((gateway.host, gateway.port), 20) for _ in range(50)]
        many = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000))
        for flood in floods:
            with suppress(ConnectionError):
                flood.sendall(many)
        assert httpx.get(f"{gateway.url}/healthz", timeout=20).status_code == 200
        for flood in floods:
            assert answer(flood)[:12] in (b"HTTP/1.1 400", b"")
            flood.close()
