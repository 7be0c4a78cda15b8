"""The command `qstate gateway`: serves the state of running jobs over HTTP, until SIGINT or SIGTERM.

Rules of this module: it turns arguments into settings, and runs the server, which is imported then, because only the
extra `gateway` installs what it needs.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from qstate.cli.connection import add_connection_options, connection_of
from qstate.errors import ConfigError, InstallationError
from qstate.gateway.settings import DEFAULT_PORTS, GatewaySettings
from qstate.host.log_lines import FORMS, LogLines, configure_logs
from qstate.installation import DISTRIBUTION
from qstate.tls import ServerTls

__all__ = ["add_gateway_command"]

#: Settings that bound what the gateway serves.
_LIMITS = {
    "max_connections": "connections at a time (default: 4096)",
    "max_connections_per_address": "connections of one address (default: half of all, no such limit for loopback)",
    "max_requests": "requests in flight (default: 256)",
    "max_requests_per_address": "requests in flight of one address (default: half of all, no such limit for loopback)",
    "max_streams": "subscriptions at a time (default: 2048)",
    "max_streams_per_address": "subscriptions of one address (default: half of all, no such limit for loopback)",
}


def add_gateway_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    gateway: argparse.ArgumentParser = commands.add_parser(
        "gateway", help="serve the state of running jobs over HTTP: REST, server-sent events, WebSockets, a live page"
    )
    gateway.add_argument(
        "--job-metrics",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="the metrics of a job (its metrics_ports), for its figures; may be repeated",
    )
    gateway.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    gateway.add_argument(
        "--port", default=DEFAULT_PORTS, metavar="PORTS", help="ports, tried in order (default: %(default)s)"
    )
    _add_security(gateway)
    for name, what in _LIMITS.items():
        gateway.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=what)
    gateway.add_argument("--log-format", choices=FORMS, default=FORMS[0], help="form of the log (default: %(default)s)")
    add_connection_options(gateway, queries=False)
    gateway.set_defaults(run=_gateway)


def _add_security(gateway: argparse.ArgumentParser) -> None:
    gateway.add_argument(
        "--certificate", default="", metavar="FILE", help="the gateway's certificate (PEM): it takes HTTPS only then"
    )
    gateway.add_argument(
        "--key", default="", metavar="FILE", help="the certificate's key (PEM), when it is in another file"
    )
    gateway.add_argument(
        "--allow-open-query-port",
        action="store_true",
        help="listen beyond loopback although the query port asks for no token: all who can connect read all state",
    )
    gateway.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of this origin, such as https://shop.example, may read answers; may be repeated; * is every page",
    )
    gateway.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="serve requests with this name in the header Host; may be repeated (default: on loopback its own names, "
        "otherwise every name)",
    )


def _tls_of(arguments: argparse.Namespace) -> ServerTls | None:
    if arguments.key and not arguments.certificate:
        raise ConfigError("--key is the key of a certificate: give --certificate, too")
    return ServerTls(arguments.certificate, arguments.key) if arguments.certificate else None


def _gateway(arguments: argparse.Namespace) -> None:
    try:
        server_module = import_module("qstate.gateway.server")
    except ModuleNotFoundError as exc:
        raise InstallationError(f"the gateway needs {exc.name}: pip install '{DISTRIBUTION}[gateway]'") from exc
    upstream = connection_of(arguments)
    settings = GatewaySettings(
        upstream.proxies,
        fallback=upstream.fallback,
        job_metrics=arguments.job_metrics,
        host=arguments.host,
        ports=arguments.port,
        tls=_tls_of(arguments),
        upstream_tls=upstream.tls,
        allow_open_query_port=arguments.allow_open_query_port,
        allow_token_without_tls=upstream.allow_token_without_tls,
        origins=arguments.cors_origin,
        hosts=arguments.allowed_host,
        **{name: limit for name in _LIMITS if (limit := getattr(arguments, name)) is not None},
    )
    configure_logs(LogLines(arguments.log_format, process="gateway"))
    server = server_module.GatewayServer(settings)
    host, port = server.address
    scheme = "https" if arguments.certificate else "http"
    print(f"serving {scheme}://{f'[{host}]' if ':' in host else host}:{port}; Ctrl-C ends it", flush=True)
    server.run()
