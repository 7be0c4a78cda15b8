"""The numbers of the protocol: message types and failure codes, as the reference has them.

Rules of this module: numbers only, written down from the reference and not taken from qstate.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Code", "Type"]


class Type(IntEnum):
    """What a message is."""

    HELLO = 0
    WELCOME = 1
    GET = 2
    VALUES = 3
    LOCATE = 4
    LOCATION = 5
    DESCRIBE = 6
    DESCRIPTION = 7
    PING = 8
    PONG = 9
    FAILURE = 10
    SCAN = 13
    PAGE = 14
    POLL = 15
    CHANGES = 16
    CANCEL = 17
    GET_PART = 18
    PART = 19


class Code(IntEnum):
    """What went wrong."""

    UNKNOWN_JOB = 1
    UNKNOWN_STATE = 2
    UNKNOWN_KEY_GROUP_LOCATION = 3
    UNKNOWN_STATE_ID = 4
    KEY_GROUP_NOT_OWNED = 5
    KEY_NOT_FOUND = 6
    WRONG_KEY_TYPE = 7
    RESTORING = 8
    SHUTTING_DOWN = 9
    OVERLOADED = 10
    DEADLINE_EXCEEDED = 11
    CONCURRENT_MODIFICATION = 12
    UNSUPPORTED = 13
    MALFORMED = 14
    TOO_LARGE = 15
    VERSION_MISMATCH = 16
    UNAUTHENTICATED = 17
    FORBIDDEN = 18
    INTERNAL = 19
    UNAVAILABLE = 20
    EPOCH_NOT_REACHED = 21
    TOO_STALE = 22
    NO_COMMITTED_EPOCH = 23
    TLS_FAILED = 24
    COMPACTED = 25
    SCAN_EXPIRED = 26
    CANCELLED = 27
