"""The settings of a gateway, and what it bounds.

Rules of this module: values and their checks; it opens nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from qstate.errors import ConfigError
from qstate.host.ports import Ports
from qstate.runtime.client.arguments import check_address
from qstate.runtime.control.readings import url_of
from qstate.tls import ClientTls, ServerTls, is_loopback

__all__ = ["DEFAULT_PORTS", "GatewaySettings"]

DEFAULT_PORTS = "8069"
#: The names under which this host reaches itself.
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway listens, whom it asks, and what it bounds. Raises `ConfigError` for what cannot work.

    - `proxies`: client proxies of the jobs, in the order in which they are tried; `fallback`: standbys.
    - `job_metrics`: addresses of the metrics of jobs, HOST:PORT or URLs, for their figures.
    - `host`, `ports`: where to listen. Beyond loopback, the query port must ask for tokens, unless
      `allow_open_query_port`, and `tls` must be given, unless `allow_token_without_tls`.
    - `tls`: certificate and key of the gateway; `upstream_tls`: how it connects to the query port.
    - `origins`: pages of these origins may read answers (CORS), such as "https://shop.example"; "*" is every page.
    - `hosts`: the only names in the Host header that are served. Empty: those of loopback if it listens there only,
      otherwise every name.
    - `max_connections`, `max_requests`: connections, and requests in flight. `max_streams`: subscriptions.
    - `max_connections_per_address`, `max_requests_per_address`, `max_streams_per_address`: those of one address. 0 is
      half of all, and no such limit for loopback.
    """

    proxies: Sequence[tuple[str, int]]
    fallback: Sequence[tuple[str, int]] = ()
    job_metrics: Sequence[str] = ()
    host: str = "127.0.0.1"
    ports: Ports = DEFAULT_PORTS
    tls: ServerTls | None = None
    upstream_tls: ClientTls | None = None
    allow_open_query_port: bool = False
    allow_token_without_tls: bool = False
    origins: Sequence[str] = ()
    hosts: Sequence[str] = ()
    max_connections: int = 4096
    max_connections_per_address: int = 0
    max_requests: int = 256
    max_requests_per_address: int = 0
    max_streams: int = 2048
    max_streams_per_address: int = 0

    def __post_init__(self) -> None:
        if not self.proxies:
            raise ConfigError("a gateway needs the address of a client proxy")
        for address in (*self.proxies, *self.fallback):
            check_address(*address)
        for metrics in self.job_metrics:
            url_of(metrics)
        for origin in self.origins:
            _check_origin(origin)
        for name in ("max_connections", "max_requests", "max_streams"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("max_connections_per_address", "max_requests_per_address", "max_streams_per_address"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if not self.is_local and self.tls is None and not self.allow_token_without_tls:
            raise ConfigError(
                f"a gateway at {self.host} would get tokens, and send values, without TLS: give it --certificate, "
                "or --allow-token-without-tls on a network that you trust or behind a proxy that speaks TLS"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this host can connect."""
        return is_loopback(self.host)

    @property
    def passes_tokens(self) -> bool:
        """Whether callers' tokens may go to the query port: not where others on the network could read them."""
        exposed = (host for host, _ in (*self.proxies, *self.fallback) if not is_loopback(host))
        return self.allow_token_without_tls or self.upstream_tls is not None or not any(exposed)

    @property
    def served_hosts(self) -> tuple[str, ...]:
        """The names in the Host header that are served; none: every name."""
        return tuple(self.hosts) or (LOCAL_NAMES if self.is_local else ())


def _check_origin(origin: str) -> None:
    if origin == "*":
        return
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}":
        raise ConfigError(f"an origin is SCHEME://HOST or SCHEME://HOST:PORT, or *, got {origin!r}")
