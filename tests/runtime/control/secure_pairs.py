"""Two ends of one connection inside a job, without a listener, and the secret of a job of the tests."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from qstate.runtime.control.job_secret import new_secret
from qstate.runtime.control.secure_socket import CONTROL, SecureSocket, accept_secure, open_secure

__all__ = ["SECRET", "secure_pair"]

SECRET = new_secret()


def secure_pair() -> tuple[SecureSocket, SecureSocket]:
    """The accepting and the connecting end of a connection."""
    accepting, connecting = socket.socketpair()
    with ThreadPoolExecutor(1) as other:
        accepted = other.submit(accept_secure, accepting, SECRET, CONTROL)
        opened = open_secure(connecting, SECRET, CONTROL)
        return accepted.result(10), opened
