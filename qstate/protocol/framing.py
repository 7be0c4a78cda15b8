"""Frames: where one message ends and the next begins.

Rules of this module: it cuts a byte stream into payloads and knows nothing of their content. It refuses a length over
the limit as soon as the four bytes of the length have arrived, before it keeps any of the body.

    0        4                    4 + length
    +--------+--------------------+
    | length | payload            |     length: unsigned, 32 bits, big-endian, of the payload alone
    +--------+--------------------+
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from qstate.errors import FailureCode, LocalProtocolError, RemoteProtocolError
from qstate.protocol.limits import DEFAULT_MAX_FRAME, MAX_FRAME_LIMIT

__all__ = ["HEADER_BYTES", "FrameReader", "frame"]

_LENGTH = Struct(">I")
HEADER_BYTES = _LENGTH.size


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    if len(payload) > MAX_FRAME_LIMIT:
        raise LocalProtocolError(f"a payload of {len(payload)} bytes has no frame", FailureCode.TOO_LARGE)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts incoming bytes, however they are split, into payloads.

    `max_frame` may be changed between frames. After `RemoteProtocolError` the next frame's
    start is unknown: every later `feed` raises again.
    """

    def __init__(self, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._data: bytes | bytearray = b""
        self._start = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Add bytes and iterate over the payloads that are complete now.

        `feed` adds the bytes at once, and the iterator cuts one payload at a time. Payloads that are left come with the
        next `feed`. The iterator raises `RemoteProtocolError` at a length over `max_frame`.
        """
        rest = len(self._data) - self._start
        if not rest:
            # The common case, whole frames in one read: cut them out of the caller's bytes directly.
            self._data = data if type(data) is bytes else bytes(data)
        elif type(self._data) is bytearray:
            # Both are cheap: a bytearray drops a prefix by moving its start, and grows geometrically.
            del self._data[: self._start]
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._start :])
            self._data += data
        self._start = 0
        return self._payloads()

    @property
    def buffered(self) -> int:
        """How many bytes belong to no payload yet."""
        return len(self._data) - self._start

    def _payloads(self) -> Iterator[bytes]:
        while len(self._data) - self._start >= HEADER_BYTES:
            data, body = self._data, self._start + HEADER_BYTES
            (length,) = _LENGTH.unpack_from(data, self._start)
            if length > self.max_frame:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes is over the limit of {self.max_frame}", FailureCode.TOO_LARGE
                )
            end = body + length
            if len(data) < end:
                return
            self._start = end
            yield data[body:end] if type(data) is bytes else bytes(memoryview(data)[body:end])
        if self._start == len(self._data):
            # No bytes are left: free the buffer, which may have held a frame of megabytes.
            self._data, self._start = b"", 0
