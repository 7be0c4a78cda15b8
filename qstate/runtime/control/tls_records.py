"""The bytes between two processes of one job: TLS 1.3 records, made and read with the job's own certificate.

Rules of this module: bytes in, bytes out; no socket. It does not know what the bytes mean. Connections of the query
port do not use it.

Both ends present the job's certificate and trust no other, so each proves to the other that it has the private key,
which is the job's secret (`job_secret`). TLS then encrypts all data, and finds data that was changed, repeated, left
out or added on the way. The name of the channel (ALPN) is part of the handshake: a connection that was led to another
listener of the same job is refused.

The records are kept apart from the socket, because OpenSSL allows only one thread at a time in one connection, but a
thread that waits for the peer must not keep others from sending.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from qstate.errors import FencedError

__all__ = ["TamperedConnection", "TlsRecords"]

#: About so much is encrypted at a time: what a socket takes at once, and little beside the rows of a batch.
ENCRYPTED_BYTES = 1 << 18
#: The most data of one record (RFC 8446, section 5.1).
RECORD_BYTES = 1 << 14
#: The contexts of a process, one for each secret, channel and role; the least recently used ones are forgotten.
KEPT_CONTEXTS = 64


class TamperedConnection(ConnectionError):
    """The data is not what the peer sent. None of it was used; the connection is of no more use."""


class TlsRecords:
    """One end of a connection: `accepting` is the listener's end, `channel` the name that both ends must give it.

    Any thread may call any method. The order of the data is that of the calls.
    """

    def __init__(self, secret: bytes, channel: str, *, accepting: bool) -> None:
        self._channel = channel
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = _context(secret, channel, accepting)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=accepting)
        self._lock = threading.Lock()

    def handshake(self) -> bool:
        """Continue the handshake. True when it is over: then the peer has proved that it knows the job's secret.

        After each call, send `outgoing`. Raises `FencedError` for a peer without the secret, or of another channel.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as exc:
            raise FencedError(f"the peer does not know the job's secret: {exc}") from exc
        if self._tls.selected_alpn_protocol() != self._channel:
            raise FencedError(f"the peer is of this job, but not at the channel {self._channel!r}")
        return True

    def outgoing(self) -> bytes:
        """The bytes of the handshake to send now."""
        return self._outgoing.read()

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes that have arrived."""
        with self._lock:
            self._incoming.write(data)

    def read_into(self, view: memoryview) -> int:
        """Decrypt into the view; returns the number of bytes, fewer than its length when more has to arrive.

        Raises `TamperedConnection`.
        """
        got = 0
        with self._lock:
            try:
                while got < len(view):
                    count: Any = self._tls.read(len(view) - got, view[got:])
                    got += count
            except ssl.SSLWantReadError:
                return got
            except ssl.SSLError as exc:
                raise _tampered(exc) from exc
        return got

    def read(self) -> bytearray:
        """Everything that has arrived, decrypted. Raises `TamperedConnection`."""
        with self._lock:
            # OpenSSL also has the begin of a record whose end may be what has arrived now. It does not say how much.
            most = RECORD_BYTES + self._tls.pending() + self._incoming.pending
        data = bytearray(most)
        with memoryview(data) as view:
            got = self.read_into(view)
        del data[got:]
        return data

    def has_unread(self) -> bool:
        """Whether bytes have arrived that were not read, perhaps too few to read any."""
        with self._lock:
            return bool(self._tls.pending() or self._incoming.pending)

    def encrypted(self, *parts: bytes | memoryview) -> Iterator[bytes]:
        """The parts as records, about `ENCRYPTED_BYTES` at a time. Send them all, in this order.

        Raises `TamperedConnection`.
        """
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), ENCRYPTED_BYTES):
                with self._lock:
                    try:
                        self._tls.write(view[start : start + ENCRYPTED_BYTES])
                    except ssl.SSLError as exc:  # such as after data that was changed has arrived
                        raise _tampered(exc) from exc
                    data = self._outgoing.read() if self._outgoing.pending >= ENCRYPTED_BYTES else b""
                if data:
                    yield data
        with self._lock:
            data = self._outgoing.read()
        if data:
            yield data


def _tampered(exc: ssl.SSLError) -> TamperedConnection:
    return TamperedConnection(f"the data of this connection was changed on the way: {exc}")


@lru_cache(KEPT_CONTEXTS)
def _context(secret: bytes, channel: str, accepting: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepting else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is the job's, whatever the host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=secret.decode())
    context.set_alpn_protocols([channel])
    if accepting:
        context.num_tickets = 0  # for resuming connections, which none does
    with ExitStack() as pipes:
        context.load_cert_chain(*(_readable(secret, pipes) for _ in ("certificate", "key")))
    return context


def _readable(secret: bytes, pipes: ExitStack) -> str:
    """The path of a pipe with the secret in it: `load_cert_chain` reads paths only, and the secret stays off disks."""
    reading, writing = os.pipe()
    pipes.callback(os.close, reading)
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(secret)
    return f"/dev/fd/{reading}"
