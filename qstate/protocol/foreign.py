"""What a server speaks that does not speak qstate's protocol: told by the first bytes that it sends.

Rules of this module: a guess for error messages. Nothing is decided by it.
"""

from __future__ import annotations

__all__ = ["OPENING_BYTES", "protocol_of"]

#: How many of a stream's first bytes are looked at.
OPENING_BYTES = 16
_NAMES = {b"HTTP": "HTTP", b"\x15\x03": "TLS", b"SSH-": "SSH", b"-ERR": "Redis's protocol", b"220 ": "FTP or SMTP"}


def protocol_of(opening: bytes) -> str | None:
    """The protocol whose servers begin so, None when that is not known."""
    return next((name for prefix, name in _NAMES.items() if opening.startswith(prefix)), None)
