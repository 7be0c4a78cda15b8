"""A blocking client with one connection, which sends any bytes, valid or not, and reads the answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from types import TracebackType

import msgpack

from qstate.errors import Detail
from qstate.keys import Key, Namespace
from qstate.protocol.codec import FrameReader
from qstate.protocol.connection import Answer, ClientConnection, ClientEvent
from qstate.protocol.messages import Describe, Failure, Get, Locate, Ping, Target, Values

PATIENCE_S = 10.0


class RawClient:
    """Opens the connection and performs the handshake, unless the test says otherwise."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: bytes | None = None,
        hello: bool = True,
        receive_buffer: int = 0,
        source: str = "",
    ) -> None:
        self.connection = ClientConnection(token=token, client="test")
        self.events: list[ClientEvent] = []
        self.sock = socket.socket()
        self.sock.settimeout(PATIENCE_S)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.sock.bind((source, 0))
        self.sock.connect(address)
        if hello:
            self.sock.sendall(self.connection.start())
            self.read()
            self.events.clear()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send_get(
        self,
        target: Target,
        *keys: Key,
        namespace: Namespace = None,
        options: Mapping[str, Detail] | None = None,
        deadline_ms: int = 10_000,
    ) -> int:
        number = self.connection.next_id()
        self.sock.sendall(self.connection.send(Get(number, deadline_ms, target, namespace, options or {}, keys)))
        return number

    def get(
        self,
        target: Target,
        *keys: Key,
        namespace: Namespace = None,
        options: Mapping[str, Detail] | None = None,
        deadline_ms: int = 10_000,
    ) -> Values | Failure:
        number = self.send_get(target, *keys, namespace=namespace, options=options, deadline_ms=deadline_ms)
        answer = self.answer_to(number)
        assert isinstance(answer, Values | Failure)
        return answer

    def locate(self, job: str, state: str, deadline_ms: int = 10_000) -> Answer:
        number = self.connection.next_id()
        self.sock.sendall(self.connection.send(Locate(number, deadline_ms, job, state)))
        return self.answer_to(number)

    def describe(self, job: str | None, deadline_ms: int = 10_000) -> Answer:
        number = self.connection.next_id()
        self.sock.sendall(self.connection.send(Describe(number, deadline_ms, job)))
        return self.answer_to(number)

    def ping(self) -> Answer:
        number = self.connection.next_id()
        self.sock.sendall(self.connection.send(Ping(number)))
        return self.answer_to(number)

    def answer_to(self, number: int) -> Answer:
        """The answer to a request; others stay in `events`."""
        while True:
            for event in self.events:
                if not hasattr(event, "max_keys") and event.id == number:  # anything but a Welcome
                    self.events.remove(event)
                    return event
            self.read()

    def read(self) -> None:
        """Read until at least one more event has come."""
        before = len(self.events)
        while len(self.events) == before:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the server closed the connection")
            self.events += self.connection.receive(data)

    def read_payloads(self, count: int) -> list[bytes]:
        """The next payloads, undecoded: answers to requests that the encoder of this side would refuse."""
        reader, payloads = FrameReader(), list[bytes]()
        while len(payloads) < count:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the server closed the connection")
            payloads += reader.feed(data)
        return payloads

    def receive_close_notice(self) -> Failure:
        """The failure with id 0, after which the connection must end."""
        while True:
            for event in self.events:
                if isinstance(event, Failure) and event.id == 0:
                    self.read_to_end()
                    return event
            self.read()

    def read_to_end(self) -> bytes:
        """The bytes that the server sends until it closes."""
        data = b""
        while chunk := self.sock.recv(65536):
            data += chunk
        return data


def wait_until(condition: object, what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition without an event, for a bounded time."""
    assert callable(condition)
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.002)


def value(number: float) -> bytes:
    """A number as a server gives it."""
    packed: bytes = msgpack.packb(number)
    return packed


def failure_code(answer: object) -> int:
    assert isinstance(answer, Failure), answer
    return answer.code
