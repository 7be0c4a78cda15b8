"""Mutual authentication of the connections inside one job (job manager, task managers, relays).

Rules of this module: it proves to both ends of a new connection that the other end knows the job's secret, and reads
nothing else. Data may be unpickled only after it has returned. Connections of the query port do not use it.

    acceptor -> opener   nonce A (32 bytes)
    opener -> acceptor   nonce B (32 bytes), HMAC-SHA256(secret, "open"   + A + B)
    acceptor -> opener                       HMAC-SHA256(secret, "accept" + A + B)

The labels differ, so that no side's proof can be replayed as the other's.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time

from qstate.errors import FencedError

__all__ = ["authenticate_accepted", "authenticate_opened", "new_secret", "receive_exactly"]

NONCE_BYTES = 32
PROOF_BYTES = 32
#: For the whole handshake, so that a slow trickle of bytes does not extend it.
HANDSHAKE_TIMEOUT_S = 5.0


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def authenticate_accepted(sock: socket.socket, secret: bytes) -> None:
    """The accepting end. Raises `FencedError` for a peer without the secret, `OSError` for a broken connection."""
    ours = secrets.token_bytes(NONCE_BYTES)
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    sock.settimeout(HANDSHAKE_TIMEOUT_S)
    sock.sendall(ours)
    answer = receive_exactly(sock, NONCE_BYTES + PROOF_BYTES, deadline=deadline)
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"open", ours, theirs)):
        raise FencedError("the peer does not know the job's secret")
    sock.sendall(_proof(secret, b"accept", ours, theirs))
    sock.settimeout(None)


def authenticate_opened(sock: socket.socket, secret: bytes) -> None:
    """The connecting end. Raises as `authenticate_accepted`."""
    ours = secrets.token_bytes(NONCE_BYTES)
    deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    theirs = receive_exactly(sock, NONCE_BYTES, deadline=deadline)
    sock.sendall(ours + _proof(secret, b"open", theirs, ours))
    if not hmac.compare_digest(
        receive_exactly(sock, PROOF_BYTES, deadline=deadline), _proof(secret, b"accept", theirs, ours)
    ):
        raise FencedError("the peer does not know the job's secret")
    sock.settimeout(None)


def receive_exactly(sock: socket.socket, size: int, *, deadline: float | None = None) -> bytearray:
    """Exactly `size` bytes. Raises `ConnectionError` at an earlier end, `TimeoutError` after the deadline."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        count = sock.recv_into(view[got:])
        if not count:
            raise ConnectionError(f"the connection ended after {got} of {size} bytes")
        got += count
    return data


def _proof(secret: bytes, label: bytes, acceptor: bytes | bytearray, opener: bytes | bytearray) -> bytes:
    return hmac.digest(secret, label + acceptor + opener, "sha256")
