"""Laws of the control channel against somebody on its path: every attack is found, and nothing of it is used."""

from __future__ import annotations

import os
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import FencedError
from qstate.runtime.control.job_secret import new_secret
from qstate.runtime.control.rpc import RpcListener, RpcPeer, connect
from qstate.runtime.control.secure_socket import CONTROL, SecureSocket, open_secure
from qstate.runtime.control.tls_records import TamperedConnection, TlsRecords
from tests.runtime.control.middleman import ATTACKS, Middleman
from tests.runtime.control.secure_pairs import SECRET

#: The length and the kinds of a control message, as `rpc` writes them.
CALL, RETURN = 0, 1


class Attacked:
    """A peer at each end of a connection through a middleman."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended = threading.Event()
        self._accepted = threading.Event()
        self._listener = RpcListener(("127.0.0.1", 0), SECRET, self._accept)
        self.middleman = Middleman(("127.0.0.1", self._listener.port))
        self.opener = RpcPeer(connect("127.0.0.1", self.middleman.port, SECRET), {}).start()
        assert self._accepted.wait(10)

    def _accept(self, connection: SecureSocket) -> None:
        handlers = {"hear": lambda what: self.heard.append(what) or len(self.heard)}
        self.acceptor = RpcPeer(connection, handlers, on_close=lambda _: self.ended.set()).start()
        self._accepted.set()

    def close(self) -> None:
        self.opener.close()
        self.acceptor.close()
        self._listener.close()
        self.middleman.close()


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    found = Attacked()
    yield found
    found.close()


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (self._path, os.O_CREAT)


def forged(call: tuple[Any, ...]) -> bytes:
    data = pickle.dumps(call)
    return len(data).to_bytes(8, "big") + data


@pytest.mark.parametrize("name", ["flips a bit", "repeats", "adds"])
def test_an_attacked_call_ends_the_connection_and_is_not_made(
    attacked: Attacked, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert attacked.opener.call("hear", "one") == 1
    attacked.middleman.forward = ATTACKS[name]
    attacked.opener.cast("hear", "two")
    assert attacked.ended.wait(10)
    assert attacked.heard == (["one", "two"] if name == "repeats" else ["one"])
    assert "was changed on the way" in caplog.text


@pytest.mark.parametrize("name", ["flips a bit", "adds"])
def test_an_attacked_answer_is_a_typed_error(attacked: Attacked, name: str) -> None:
    attacked.middleman.backward = ATTACKS[name]
    with pytest.raises(TamperedConnection, match="was changed on the way"):
        attacked.opener.call("hear", "one", timeout_s=10)


def test_an_answer_that_is_repeated_counts_once_and_is_found_out(
    attacked: Attacked, caplog: pytest.LogCaptureFixture
) -> None:
    attacked.middleman.backward = ATTACKS["repeats"]
    assert attacked.opener.call("hear", "one", timeout_s=10) == 1
    assert attacked.ended.wait(10)
    assert "was changed on the way" in caplog.text


def test_a_call_that_is_dropped_is_noticed_with_the_next(attacked: Attacked) -> None:
    attacked.middleman.forward = ATTACKS["drops"]
    dropped = attacked.opener.submit("hear", "dropped")
    assert attacked.middleman.struck.wait(10)
    attacked.opener.cast("hear", "next")
    with pytest.raises(ConnectionError):
        dropped.result(10)
    assert attacked.ended.wait(10)
    assert not attacked.heard


def test_an_added_pickle_is_not_unpickled(attacked: Attacked, tmp_path: Path) -> None:
    call = forged((CALL, 1, "hear", (Touch(tmp_path / "call"),)))
    answer = forged((RETURN, 1, Touch(tmp_path / "answer"), None))
    attacked.middleman.backward = lambda data: answer + data
    with pytest.raises(TamperedConnection):
        attacked.opener.call("hear", "one", timeout_s=10)
    second = Attacked()
    try:
        second.middleman.forward = lambda data: call + data
        with pytest.raises(ConnectionError):
            second.opener.call("hear", "one", timeout_s=10)
        assert second.ended.wait(10)
        assert not second.heard
    finally:
        second.close()
    assert not list(tmp_path.iterdir())


def test_what_is_said_cannot_be_read_on_the_way(attacked: Attacked) -> None:
    attacked.opener.call("hear", "a-secret-word")
    assert b"a-secret-word" not in attacked.middleman.seen
    assert b"PRIVATE" not in attacked.middleman.seen


def test_a_middleman_with_its_own_certificate_gets_neither_end(attacked: Attacked) -> None:
    """It can end the connection to each side itself, but neither side talks to it."""
    met: list[SecureSocket] = []
    own = new_secret()
    impostor = RpcListener(("127.0.0.1", 0), own, met.append)
    try:
        with pytest.raises(FencedError, match="does not know the job's secret"):
            connect("127.0.0.1", impostor.port, SECRET)
    finally:
        impostor.close()
    assert not met
    with (
        socket.create_connection(("127.0.0.1", attacked.middleman.port), timeout=10) as sock,
        pytest.raises(FencedError),
    ):
        open_secure(sock, own, CONTROL)


def test_a_peer_without_a_certificate_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """TLS lets the opener finish first; the listener's refusal is the end of the connection."""
    met: list[SecureSocket] = []
    listener = RpcListener(("127.0.0.1", 0), SECRET, met.append)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([CONTROL])
    try:
        sock = socket.create_connection(("127.0.0.1", listener.port), timeout=10)
        with suppress(OSError), sock, context.wrap_socket(sock) as secure:
            secure.sendall(forged((CALL, 1, "hear", ())))
            while secure.recv(100):
                pass
    finally:
        listener.close()
    assert not met
    assert "a control connection was refused: the peer does not know the job's secret" in caplog.text


def test_a_connection_that_is_led_to_another_listener_of_the_job_is_refused() -> None:
    met: list[SecureSocket] = []
    elsewhere = RpcListener(("127.0.0.1", 0), SECRET, met.append, channel="another")
    try:
        with pytest.raises(FencedError, match="not at the channel 'qstate control'"):
            connect("127.0.0.1", elsewhere.port, SECRET)
    finally:
        elsewhere.close()
    assert not met


def records_pair() -> list[TlsRecords]:
    """The two ends of a connection after their handshake."""
    ends = [TlsRecords(SECRET, CONTROL, accepting=accepting) for accepting in (False, True)]
    done = [False, False]
    while not all(done):
        for number, (end, other) in enumerate((ends, ends[::-1])):
            done[number] = done[number] or end.handshake()
            other.feed(end.outgoing())
    return ends


@pytest.mark.parametrize("size", [0, 1, 16384, 262144, 262145, 3 << 20])
def test_data_of_any_size_arrives_as_it_was_sent(size: int) -> None:
    sender, receiver = records_pair()
    data = os.urandom(size)
    for record in sender.encrypted(b"head", data):
        receiver.feed(record)
    assert receiver.has_unread()
    assert receiver.read() == b"head" + data
    assert not receiver.has_unread()


@pytest.mark.parametrize("cut", [1, 5, 6, 1000, 16000, 16405, 16406, 20000, -1000, -1])
def test_a_record_that_arrives_in_pieces_is_read_whole_with_its_last_piece(cut: int) -> None:
    sender, receiver = records_pair()
    data = os.urandom(40_000)
    records = b"".join(sender.encrypted(data))
    receiver.feed(records[:cut])
    first = receiver.read()
    receiver.feed(records[cut:])
    assert first + receiver.read() == data
