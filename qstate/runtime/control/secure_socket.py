"""Blocking sockets between the processes of one job: the peer is authenticated, and its data cannot be changed.

Rules of this module: it moves the bytes of `tls_records` over a socket and bounds the time of the handshake. It does
not know what the data means. Data may be unpickled only when it comes from here, so after the peer has proved that it
knows the job's secret.

Unix sockets are no exception. The directory of a socket is private, but when its owner has ended, another user may
create one of the same name. And to encrypt costs too little for a second way (`docs/explanation/architecture.md`).
"""

from __future__ import annotations

import socket
import time

from qstate.runtime.control.tls_records import TlsRecords

__all__ = ["CONTROL", "SecureSocket", "accept_secure", "open_secure"]

#: The channel of the job manager.
CONTROL = "qstate control"
#: For the whole handshake, so that a slow trickle of bytes does not extend it.
HANDSHAKE_TIMEOUT_S = 5.0
#: The most that is read at a time, and what a connection begins with: most carry small messages, and the driver of a
#: large job has thousands of them.
RECEIVE_BYTES = 1 << 18
FIRST_RECEIVE_BYTES = 1 << 14


class SecureSocket:
    """A connected socket after the handshake. One thread may send while another one receives.

    `socket` and `records` are for those who do not want to block.
    """

    def __init__(self, sock: socket.socket, records: TlsRecords) -> None:
        self.socket = sock
        self.records = records
        self._received = memoryview(bytearray(FIRST_RECEIVE_BYTES))

    def sendall(self, *parts: bytes | memoryview) -> None:
        """Send the parts. Raises `OSError`."""
        for data in self.records.encrypted(*parts):
            self.socket.sendall(data)

    def receive_exactly(self, size: int) -> bytearray:
        """Exactly `size` bytes. Raises `ConnectionError` at an earlier end, `TamperedConnection` for changed data."""
        data = bytearray(size)
        view = memoryview(data)
        got = self.records.read_into(view)
        while got < size:
            count = self.socket.recv_into(self._received)
            if not count:
                raise ConnectionError(f"the connection ended after {got} of {size} bytes")
            self.records.feed(self._received[:count])
            got += self.records.read_into(view[got:])
            if count == len(self._received) < RECEIVE_BYTES:  # more was there: this peer sends much
                self._received = memoryview(bytearray(2 * count))
        return data


def accept_secure(sock: socket.socket, secret: bytes, channel: str) -> SecureSocket:
    """The accepting end. Raises `FencedError` for a peer without the secret, `OSError` for a broken connection."""
    return _after_handshake(sock, TlsRecords(secret, channel, accepting=True))


def open_secure(sock: socket.socket, secret: bytes, channel: str) -> SecureSocket:
    """The connecting end. Raises as `accept_secure`."""
    return _after_handshake(sock, TlsRecords(secret, channel, accepting=False))


def _after_handshake(sock: socket.socket, records: TlsRecords) -> SecureSocket:
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while True:
        done = records.handshake()
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.sendall(records.outgoing())
        if done:
            sock.settimeout(None)
            return SecureSocket(sock, records)
        data = sock.recv(FIRST_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the connection ended before the peer had shown that it knows the job's secret")
        records.feed(data)
