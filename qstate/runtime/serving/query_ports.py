"""The query ports that the config gives a process.

Rules of this module: settings in, options out; it opens nothing.
"""

from __future__ import annotations

import hmac
import logging
import socket

from qstate.config import JobConfig
from qstate.errors import ConfigError
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.tls import ClientTls, ServerTls, is_loopback

__all__ = ["check_exposure", "endpoint_options", "reachable"]

log = logging.getLogger(__name__)


def endpoint_options(config: JobConfig, which: str, host: str, secret: bytes) -> EndpointOptions:
    """The options of the `proxy` or the `server`. It listens on `host` unless the config names an address.

    The proxies and state servers of a job have its `secret` in common, by which servers know the proxies.
    """
    protected = config.auth_token or config.access_file
    return EndpointOptions(
        bind=getattr(config, f"{which}_bind") or host,
        ports=getattr(config, f"{which}_ports"),
        network_threads=getattr(config, f"{which}_network_threads") or config.slots,
        query_threads=getattr(config, f"{which}_query_threads") or config.slots,
        max_connections=config.max_connections,
        max_connections_per_address=config.max_connections_per_address,
        max_frame=config.max_frame_bytes,
        max_buffered_bytes=config.max_buffered_bytes,
        max_queued=config.max_queued_requests,
        max_requests_per_connection=config.max_requests_per_connection,
        token=config.auth_token.encode() or None,
        access_file=config.access_file,
        audit_log=config.audit_log,
        peer_token=_peer_token(secret) if protected else None,
        tls=_server_tls(config),
        owner_tls=_owner_tls(config),
        allow_token_without_tls=config.allow_token_without_tls,
        tracing=config.tracing,
    )


def _peer_token(secret: bytes) -> bytes:
    """What proxies present to state servers. It proves that one knows the secret, and does not tell the secret."""
    return hmac.digest(secret, b"a proxy at the query port", "sha256")


def _server_tls(config: JobConfig) -> ServerTls | None:
    if not config.tls_certificate_file:
        unused = next((name for name in ("tls_key_file", "tls_client_ca_file") if getattr(config, name)), None)
        if unused:
            raise ConfigError(f"{unused} needs tls_certificate_file: without a certificate there is no TLS")
        return None
    return ServerTls(
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_client_ca_file,
        config.tls_require_client_certificate,
    )


def _owner_tls(config: JobConfig) -> ClientTls | None:
    """How proxies connect to state servers, which have the same settings: their certificate is the client's, too."""
    if not config.tls_certificate_file:
        return None
    return ClientTls(config.tls_ca_file, config.tls_certificate_file, config.tls_key_file, config.tls_server_name)


def check_exposure(config: JobConfig, host: str) -> None:
    """Raise `ConfigError` for a query port on the network without authentication, unless the config allows it.

    Also for one whose token would travel without TLS.
    """
    exposed = [bind for bind in (config.proxy_bind or host, config.server_bind or host) if not is_loopback(bind)]
    if not exposed:
        return
    if config.auth_token or config.access_file:
        if not config.tls_certificate_file and not config.allow_token_without_tls:
            raise ConfigError(
                f"clients would send their token to {exposed[0]} without TLS, where others can read it: set "
                "tls_certificate_file (--tls-certificate), or, on a network that you trust, "
                "allow_token_without_tls=True (--allow-token-without-tls)"
            )
        return
    if config.tls_client_ca_file and config.tls_require_client_certificate:
        return
    if not config.allow_open_query_port:
        raise ConfigError(
            f"the query ports would listen on {exposed[0]} without authentication: set auth_token (QSTATE_TOKEN on the "
            "command line), access_file or tls_client_ca_file, set proxy_bind and server_bind to 127.0.0.1 (--host), "
            "or set allow_open_query_port=True (--allow-open-query-port) if that is meant"
        )
    log.warning("the query ports listen on %s without authentication, as allow_open_query_port says", exposed[0])


def reachable(address: tuple[str, int]) -> tuple[str, int]:
    """The address at which other hosts reach a port of this host that listens on `address`."""
    host, port = address
    if host not in ("0.0.0.0", "::"):
        return address
    try:
        return socket.gethostbyname(socket.gethostname()), port
    except OSError:  # the host's own name does not resolve
        return "127.0.0.1", port
