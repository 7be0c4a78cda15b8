"""The bounds of the wire protocol: how much a peer may send before it is refused.

Rules of this module: numbers only. A server announces the limits that it chooses in its Welcome. The others are part
of the protocol and the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from qstate.errors import ConfigError
from qstate.keys import MAX_PARALLELISM_LIMIT
from qstate.setting_values import MAX_FRAME_LIMIT, MIN_MAX_FRAME

__all__ = [
    "DEFAULT_LIMITS",
    "DEFAULT_MAX_FRAME",
    "DEFAULT_MAX_KEYS",
    "HANDSHAKE_MAX_FRAME",
    "MAX_DEADLINE_MS",
    "MAX_ENTRIES",
    "MAX_FEATURES",
    "MAX_FRAME_LIMIT",
    "MAX_ID",
    "MAX_KEYS_LIMIT",
    "MAX_MAP_ENTRIES",
    "MAX_NAME",
    "MAX_POSITION",
    "MAX_RUNS",
    "MAX_TOKEN",
    "MAX_VERSION",
    "MAX_VERSIONS",
    "MAX_VERSION_BYTES",
    "MAX_VIEW",
    "MIN_MAX_FRAME",
    "PROTOCOL_VERSIONS",
    "STATE_ID_BYTES",
    "Limits",
]

#: The versions of the protocol that this package supports.
PROTOCOL_VERSIONS = (1,)

DEFAULT_MAX_FRAME = 16 * 1024 * 1024
#: The limit for unauthenticated peers, before the handshake is done. No opening message needs more.
HANDSHAKE_MAX_FRAME = 64 * 1024

DEFAULT_MAX_KEYS = 10_000
MAX_KEYS_LIMIT = 1 << 20

MAX_ID = (1 << 32) - 1
MAX_DEADLINE_MS = (1 << 32) - 1
MAX_VERSION = 65_535
#: Characters (code points) of a job, state, host, option, field or feature name.
MAX_NAME = 255
MAX_TOKEN = 4096
MAX_VERSIONS = 64
#: So few that the longest Welcome fits into `HANDSHAKE_MAX_FRAME`.
MAX_FEATURES = 32
MAX_MAP_ENTRIES = 64
#: Owners of a Location and entries of a Description.
MAX_ENTRIES = MAX_PARALLELISM_LIMIT
STATE_ID_BYTES = 16
#: Bytes of a Poll's position.
MAX_POSITION = 64
#: Runs of one Changes.
MAX_RUNS = 1 << 16
#: Bytes of the view of a scan.
MAX_VIEW = 64
#: Bytes of the version of a value.
MAX_VERSION_BYTES = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one side accepts."""

    max_frame: int = DEFAULT_MAX_FRAME
    max_keys: int = DEFAULT_MAX_KEYS

    def __post_init__(self) -> None:
        if not MIN_MAX_FRAME <= self.max_frame <= MAX_FRAME_LIMIT:
            raise ConfigError(f"max_frame must be {MIN_MAX_FRAME} to {MAX_FRAME_LIMIT} bytes, got {self.max_frame}")
        if not 1 <= self.max_keys <= MAX_KEYS_LIMIT:
            raise ConfigError(f"max_keys must be 1 to {MAX_KEYS_LIMIT}, got {self.max_keys}")


DEFAULT_LIMITS = Limits()
