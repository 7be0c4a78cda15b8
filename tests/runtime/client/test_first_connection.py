"""A proxy that was never reached: the first connection fails at once, and the error names the address."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qstate.client import QueryableStateClient
from qstate.errors import DeadlineExceeded, Unavailable, VersionMismatch
from qstate.runtime.routing.routed_get import LAST_TRY_S
from tests.runtime.client.peer import Peer, RawPeer
from tests.runtime.client.real_job import Asked, MakeClient

#: The deadline of everything here. What takes as long has waited for nothing.
PATIENCE_S = 30.0
AT_ONCE_S = PATIENCE_S / 3


@pytest.fixture(params=["sync proxy", "sync direct", "asyncio proxy", "asyncio direct"])
def make(request: pytest.FixtureRequest) -> MakeClient:
    kind, way = request.param.split()

    def client(address: tuple[str, int], **options: Any) -> Any:
        options = {"direct": way == "direct", "timeout_s": PATIENCE_S, **options}
        return QueryableStateClient(*address, **options) if kind == "sync" else Asked(address, **options)

    return client


@pytest.fixture
def refused() -> Iterator[tuple[str, int]]:
    """An address that refuses connections: bound, without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()


def fails(ask: Callable[[], Any], error: type[Exception], message: str) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=message):
        ask()
    assert time.monotonic() - started < AT_ONCE_S


def test_a_first_connection_that_is_refused_fails_after_one_more_try(
    make: MakeClient, refused: tuple[str, int]
) -> None:
    def ask() -> Any:
        with make(refused) as client:
            return client.get("job", "state", "JFK")

    started = time.monotonic()
    fails(ask, Unavailable, rf"cannot connect to 127.0.0.1:{refused[1]} \(2 tries\): Connection refused. Is the job")
    assert time.monotonic() - started >= LAST_TRY_S


@pytest.mark.parametrize("isolation", ["live", "committed"])
def test_it_fails_as_fast_with_a_fallback_that_was_never_reached(
    make: MakeClient, refused: tuple[str, int], isolation: str
) -> None:
    def ask() -> Any:
        with make(refused, fallback=[refused]) as client:
            return client.get("job", "state", "JFK", isolation=isolation)

    fails(ask, Unavailable, f"cannot connect to 127.0.0.1:{refused[1]}.*Connection refused")


def test_every_request_fails_like_that(refused: tuple[str, int]) -> None:
    with QueryableStateClient(*refused, timeout_s=PATIENCE_S) as client:
        for ask in (client.ping, client.jobs, lambda: client.states("job"), lambda: client.get_many("j", "s", ["k"])):
            fails(ask, Unavailable, "cannot connect")
        futures = [client.submit("job", "state", f"{number}") for number in range(5)]
        for future in futures:
            fails(future.result, Unavailable, "cannot connect")


def test_an_unknown_host_name_fails_with_the_name_services_reason(make: MakeClient) -> None:
    def ask() -> Any:
        with make(("no-such-host.invalid", 9069)) as client:
            return client.ping()

    fails(ask, Unavailable, "cannot connect to no-such-host.invalid:9069")


def test_a_proxy_that_was_reached_before_is_waited_for(make: MakeClient) -> None:
    with Peer() as first:
        port = first.address[1]
        with make(first.address) as client, ThreadPoolExecutor(1) as threads:
            assert client.get("job", "state", "JFK").value() == "JFK"
            first.close()
            asked = threads.submit(client.ping)
            done = threading.Event()
            asked.add_done_callback(lambda _: done.set())
            assert not done.wait(3 * LAST_TRY_S), "it was given up like one that was never there"
            with Peer(port=port):
                assert asked.result(PATIENCE_S) > 0


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "speaks HTTP, not qstate"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "speaks TLS, not qstate"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "speaks SSH, not qstate"),
        (b"\x00\x00\x00\x01\xc1", "no client proxy and no state server of qstate"),
    ],
)
def test_a_server_that_is_not_a_proxy_is_identified(make: MakeClient, greeting: bytes, message: str) -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(65536)
        for byte in greeting:
            sock.sendall(bytes([byte]))
        sock.recv(1)

    def ask(address: tuple[str, int]) -> Any:
        with make(address) as client:
            return client.ping()

    with RawPeer(behave) as peer:
        fails(lambda: ask(peer.address), VersionMismatch, message)
        assert peer.address[1]


def test_a_server_that_waits_for_more_bytes_is_identified_at_the_deadline(make: MakeClient) -> None:
    def ask(address: tuple[str, int]) -> Any:
        with make(address, timeout_s=0.3) as client:
            return client.ping()

    with RawPeer(lambda sock: [sock.recv(100), sock.recv(100)]) as peer:  # type: ignore[arg-type,func-returns-value]
        fails(lambda: ask(peer.address), DeadlineExceeded, f"port={peer.address[1]}.*no Welcome has come")
