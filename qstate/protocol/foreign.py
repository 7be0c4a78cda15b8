"""Guesses the protocol of a foreign server by the first bytes that it sends.

Rules of this module: the guess serves error messages only. No decision depends on it.
"""

from __future__ import annotations

__all__ = ["OPENING_BYTES", "protocol_of"]

#: How many first bytes of a stream the guess needs.
OPENING_BYTES = 16
_NAMES = {b"HTTP": "HTTP", b"\x15\x03": "TLS", b"SSH-": "SSH", b"-ERR": "Redis's protocol", b"220 ": "FTP or SMTP"}


def protocol_of(opening: bytes) -> str | None:
    """The protocol whose servers send this opening, None when it is unknown."""
    return next((name for prefix, name in _NAMES.items() if opening.startswith(prefix)), None)
