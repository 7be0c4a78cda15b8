"""A port that refuses connections, whatever other tests start meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["closed_port"]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of loopback that nobody listens on. It is bound, so nobody else can have it inside the context."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
