"""The wire protocol of the query port: messages, frames and connections, without I/O.

Rules of this package: bytes in, events out. No sockets, no threads, no clock. docs/reference/protocol.md is
the specification.
"""

from qstate.protocol.codec import BadContent, decode, encode
from qstate.protocol.connection import (
    Answer,
    BadRequest,
    BrokenConnection,
    ClientConnection,
    ClientEvent,
    ConnectionState,
    Opened,
    Request,
    ServerConnection,
    ServerEvent,
)
from qstate.protocol.framing import FrameReader, frame
from qstate.protocol.limits import (
    DEFAULT_LIMITS,
    DEFAULT_MAX_FRAME,
    DEFAULT_MAX_KEYS,
    MAX_DEADLINE_MS,
    MAX_ID,
    PROTOCOL_VERSIONS,
    STATE_ID_BYTES,
    Limits,
)
from qstate.protocol.messages import (
    NO_EPOCH,
    Describe,
    Description,
    Failure,
    Get,
    Hello,
    Locate,
    Location,
    Message,
    Owned,
    Ping,
    Pong,
    Target,
    Values,
    Welcome,
)

__all__ = [
    "DEFAULT_LIMITS",
    "DEFAULT_MAX_FRAME",
    "DEFAULT_MAX_KEYS",
    "MAX_DEADLINE_MS",
    "MAX_ID",
    "NO_EPOCH",
    "PROTOCOL_VERSIONS",
    "STATE_ID_BYTES",
    "Answer",
    "BadContent",
    "BadRequest",
    "BrokenConnection",
    "ClientConnection",
    "ClientEvent",
    "ConnectionState",
    "Describe",
    "Description",
    "Failure",
    "FrameReader",
    "Get",
    "Hello",
    "Limits",
    "Locate",
    "Location",
    "Message",
    "Opened",
    "Owned",
    "Ping",
    "Pong",
    "Request",
    "ServerConnection",
    "ServerEvent",
    "Target",
    "Values",
    "Welcome",
    "decode",
    "encode",
    "frame",
]
