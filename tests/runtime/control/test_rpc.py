"""Laws of the control plane: calls in both directions, typed errors, and nothing for peers without the secret."""

from __future__ import annotations

import pickle
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import FencedError, JobError
from qstate.runtime.control import rpc, secure_socket
from qstate.runtime.control.job_secret import new_secret
from qstate.runtime.control.rpc import RpcListener, RpcPeer, connect
from qstate.runtime.control.secure_socket import CONTROL, SecureSocket, accept_secure, open_secure
from tests.runtime.control.secure_pairs import SECRET, secure_pair
from tests.runtime.job.running_job import until


class Pair:
    """Two connected peers."""

    def __init__(self, server_handlers: dict[str, Callable[..., Any]], client_handlers: dict[str, Any]) -> None:
        self.accepted = threading.Event()
        self.ended = threading.Event()
        self._handlers = server_handlers
        self.server: RpcPeer
        self.listener = RpcListener(("127.0.0.1", 0), SECRET, self._accept)
        connection = connect("127.0.0.1", self.listener.port, SECRET)
        self.client = RpcPeer(connection, client_handlers).start()
        assert self.accepted.wait(5)

    def _accept(self, connection: SecureSocket) -> None:
        self.server = RpcPeer(
            connection, self._handlers, threaded=frozenset({"slow"}), on_close=lambda _: self.ended.set()
        ).start()
        self.accepted.set()

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.listener.close()


def assert_served(pair: Pair) -> None:
    """A further process of the job is served. The listener's handshake is over only when the call is answered."""
    peer = RpcPeer(connect("127.0.0.1", pair.listener.port, SECRET, timeout_s=20), {}).start()
    try:
        assert peer.call("quick", timeout_s=20) == "here"
    finally:
        peer.close()


@pytest.fixture
def pair_of() -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(server: dict[str, Callable[..., Any]], client: dict[str, Callable[..., Any]] | None = None) -> Pair:
        pairs.append(Pair(server, client or {}))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


def test_calls_go_both_ways(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of({"double": lambda n: 2 * n}, {"negate": lambda n: -n})
    assert pair.client.call("double", 21) == 42
    assert pair.server.call("negate", 42) == -42


def test_a_slow_call_does_not_hold_up_others(pair_of: Callable[..., Pair]) -> None:
    go = threading.Event()
    pair = pair_of({"slow": lambda: go.wait(5), "quick": lambda: "here"})
    slow = pair.client.submit("slow")
    assert pair.client.call("quick") == "here"
    go.set()
    assert slow.result(5) is True


def test_a_typed_error_arrives_as_itself(pair_of: Callable[..., Pair]) -> None:
    def refuse() -> None:
        raise FencedError("too late")

    pair = pair_of({"refuse": refuse})
    with pytest.raises(FencedError, match="too late"):
        pair.client.call("refuse")


def test_an_unforeseen_error_arrives_as_a_job_error(
    pair_of: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    pair = pair_of({"broken": lambda: 1 // 0})
    with pytest.raises(JobError, match="broken failed: ZeroDivisionError"):
        pair.client.call("broken")
    assert "control call broken failed" in caplog.text


def test_the_end_of_the_connection_fails_waiting_calls(pair_of: Callable[..., Pair]) -> None:
    go = threading.Event()
    pair = pair_of({"slow": lambda: go.wait(5)})
    waiting = pair.client.submit("slow")
    pair.server.close()
    with pytest.raises(ConnectionError):
        waiting.result(5)
    with pytest.raises(ConnectionError):
        pair.client.call("slow")
    go.set()
    assert pair.ended.wait(5)


def test_a_peer_without_the_secret_gets_nothing_unpickled(
    pair_of: Callable[..., Pair], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = pair_of({})
    mark = tmp_path / "unpickled"
    with socket.create_connection(("127.0.0.1", pair.listener.port)) as connection:
        connection.settimeout(5)
        connection.sendall(bytes(64) + pickle.dumps(_Touch(str(mark))))
        assert not connection.recv(1)
    assert not mark.exists()


def test_a_listener_without_the_secret_is_refused() -> None:
    impostor = RpcListener(("127.0.0.1", 0), new_secret(), lambda connection: connection.socket.close())
    try:
        with pytest.raises(FencedError, match="does not know the job's secret"):
            connect("127.0.0.1", impostor.port, SECRET)
    finally:
        impostor.close()


class _Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (Path(self._path),)


def test_silent_unauthenticated_connections_are_closed_and_others_served(
    pair_of: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_socket, "HANDSHAKE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(rpc, "MAX_UNAUTHENTICATED", 4)
    pair = pair_of({"quick": lambda: "here"})
    threads = threading.active_count()
    connections = [socket.create_connection(("127.0.0.1", pair.listener.port)) for _ in range(20)]
    try:
        for connection in connections:
            connection.settimeout(10)
            with suppress(ConnectionError):  # it may be closed already
                connection.sendall(b"x")
        until(lambda: threading.active_count() <= threads + 4, "the threads of closed connections end")
        assert pair.client.call("quick") == "here"
        for connection in connections:
            with suppress(ConnectionError):
                while connection.recv(100):
                    pass
    finally:
        for connection in connections:
            connection.close()
    assert_served(pair)


def test_strangers_on_all_places_do_not_keep_the_jobs_own_processes_out(
    pair_of: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them has to go: a process of the job needs its place for some milliseconds only."""
    monkeypatch.setattr(secure_socket, "HANDSHAKE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(rpc, "MAX_UNAUTHENTICATED", 4)
    pair = pair_of({"quick": lambda: "here"})
    strangers = [socket.create_connection(("127.0.0.1", pair.listener.port), timeout=20) for _ in range(4)]
    try:
        assert_served(pair)
        assert strangers[0].recv(1) == b"", "closed"
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_trickle_of_bytes_does_not_extend_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_socket, "HANDSHAKE_TIMEOUT_S", 0.5)
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        for byte in b"\x16\x03\x01\x01\x00" + bytes(256):  # the beginning of a TLS record of 256 bytes
            if stop.wait(0.1):
                return
            with suppress(OSError):
                theirs.sendall(bytes([byte]))

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            accept_secure(ours, SECRET, CONTROL)
        assert time.monotonic() - began < 3.0
    finally:
        stop.set()
        dripping.join()
        ours.close()
        theirs.close()


def test_a_listener_that_ran_out_of_descriptors_accepts_again_when_there_are_some(
    pair_of: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    pair = pair_of({})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
    try:
        waiting.settimeout(10)
        waiting.connect(("127.0.0.1", pair.listener.port))
        deadline = time.monotonic() + 10
        while "cannot accept" not in caplog.text and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        assert "cannot accept control connections for the moment" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    pair.accepted.clear()
    with waiting:
        open_secure(waiting, SECRET, CONTROL)
        assert pair.accepted.wait(10)


def test_what_cannot_be_pickled_fails_its_call_and_not_the_connection(
    pair_of: Callable[..., Pair], caplog: pytest.LogCaptureFixture
) -> None:
    pair = pair_of({"lock": threading.Lock, "quick": lambda: "here"})
    with pytest.raises(JobError, match="lock failed: its answer cannot be sent"):
        pair.client.call("lock")
    with pytest.raises(TypeError, match="pickle"):
        pair.client.call("quick", threading.Lock())
    assert pair.client.call("quick") == "here"
    assert not pair.client._waiting


def test_fenced_error_keeps_its_details_over_a_call(pair_of: Callable[..., Pair]) -> None:
    def refuse() -> None:
        raise FencedError("another took over", superseded=True)

    with pytest.raises(FencedError) as caught:
        pair_of({"refuse": refuse}).client.call("refuse")
    assert caught.value.superseded


def test_a_peer_that_was_never_started_closes_its_socket() -> None:
    ours, theirs = secure_pair()
    with theirs.socket as other:
        RpcPeer(ours, {}).close()
        assert other.recv(1) == b""
        assert ours.socket.fileno() == -1
