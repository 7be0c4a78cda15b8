"""How a state server or a client proxy listens, and what it bounds.

Rules of this module: values and their checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from qstate.errors import ConfigError
from qstate.host.ports import Ports, ports_text
from qstate.protocol.limits import DEFAULT_MAX_FRAME, DEFAULT_MAX_KEYS, Limits
from qstate.tls import ClientTls, ServerTls

__all__ = ["EndpointOptions"]


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How a server or proxy listens and what it bounds. Raises `ConfigError` for a value that cannot work.

    - `bind`: the host name or address to listen on. "0.0.0.0" is every address of this host: set a `token` then.
    - `ports`: tried in order. Text ("9069,9100-9200"), a number, a range, or an iterable of these. 0 is any free port.
      The options have them as text.
    - `network_threads`, `query_threads`: the threads of one pool, which read connections and execute requests. At most
      `query_threads` requests execute at the same time.
    - `max_connections`: a further one replaces an idle connection, or is refused (OVERLOADED).
      `max_connections_per_address`: the same for the connections from one address. 0 is half of all, and no such limit
      for loopback addresses: proxies, tunnels and tools of the same host come from there.
    - `max_frame`: bytes of the largest request and answer, 4096 to 2**32 - 1. `max_keys`: keys of a get.
    - `max_queued`: requests in flight of all connections; further ones are OVERLOADED.
      `max_requests_per_connection`: those of one connection, which is not read meanwhile.
    - `query_quota`: the share of a processor that all requests together may use, such as 0.5 for half of one; 0 is no
      quota. Addresses that want more than their part are read more slowly. A `ClientProxy` with a `local` server shares
      the quota of that.
    - `token`: bytes that clients must present, None for no authentication. Who presents it may do everything.
    - `access_file`: path of a file with other tokens and certificates, and their rights. It may change while the port
      serves.
    - `peer_token`: bytes that a proxy presents to state servers, which let it do everything: the proxy has checked its
      clients' rights. None: `token`.
    - `audit_log`: log who asked for what and what was refused, to the logger `qstate.audit`.
    - `max_buffered_bytes`: what all connections may hold in memory together: requests that have not arrived whole and
      answers that are not read yet, and half as much for requests in flight. Beyond it the connection that has held
      memory longest, of the address that holds most, is closed. At least four of the largest frames.
    - `tls`: the port takes TLS connections only. `owner_tls`: how a proxy connects to state servers; None without TLS.
      Then it sends its token to loopback only, unless `allow_token_without_tls`.
    - `handshake_timeout_s`: seconds within which a new connection must present itself. `frame_timeout_s`: seconds
      within which a frame that has begun must arrive whole.
    - `unread_timeout_s`: seconds after which a client that reads nothing of its answers loses its connection.
    - `tracing`: make OpenTelemetry spans for the gets of clients with tracing; needs the package opentelemetry-api.
    """

    bind: str = "127.0.0.1"
    ports: Ports = "0"
    network_threads: int = 1
    query_threads: int = 1
    max_connections: int = 1024
    max_connections_per_address: int = 0
    max_frame: int = DEFAULT_MAX_FRAME
    max_keys: int = DEFAULT_MAX_KEYS
    max_queued: int = 10_000
    max_requests_per_connection: int = 1000
    max_buffered_bytes: int = 64 * 1024 * 1024
    query_quota: float = 0.0
    token: bytes | None = field(default=None, repr=False)
    access_file: str = ""
    peer_token: bytes | None = field(default=None, repr=False)
    audit_log: bool = False
    tls: ServerTls | None = None
    owner_tls: ClientTls | None = None
    allow_token_without_tls: bool = False
    handshake_timeout_s: float = 10.0
    frame_timeout_s: float = 30.0
    unread_timeout_s: float = 30.0
    tracing: bool = False

    def __post_init__(self) -> None:
        for name in _ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above zero, got {getattr(self, name)}")
        if not (self.query_quota >= 0 and isfinite(self.query_quota)):
            raise ConfigError(f"query_quota must be 0 or above, and finite, got {self.query_quota}")
        if self.max_connections_per_address < 0:
            raise ConfigError(
                f"max_connections_per_address must not be negative, got {self.max_connections_per_address}"
            )
        Limits(self.max_frame, self.max_keys)
        object.__setattr__(self, "ports", ports_text(self.ports))


_ABOVE_ZERO = (
    "network_threads",
    "query_threads",
    "max_connections",
    "max_queued",
    "max_requests_per_connection",
    "max_buffered_bytes",
    "handshake_timeout_s",
    "frame_timeout_s",
    "unread_timeout_s",
)
