"""The command `qstate serve LOCATION`: runs a standby in the foreground, until SIGINT or SIGTERM.

Rules of this module: it turns arguments into a `Standby`, starts it and stops it. It must not know what the standby
serves.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from qstate.cli.arguments import add_storage_option, storage_options
from qstate.cli.connection import TOKEN_VARIABLE
from qstate.config import JobConfig
from qstate.descriptors import StateDescriptor
from qstate.errors import ConfigError
from qstate.host.log_lines import FORMS, LogLines, configure_logs
from qstate.runtime.control.tracing import configure_tracing
from qstate.runtime.standby.standby import DEFAULT_INTERVAL_S, Standby

__all__ = ["add_serve_command"]

_ENDS = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS = JobConfig()


def add_serve_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    serve: argparse.ArgumentParser = commands.add_parser(
        "serve", help="answer committed queries from a checkpoint directory or savepoint, without the job"
    )
    serve.add_argument(
        "location", metavar="LOCATION", help="a job's checkpoint_dir, which the standby follows, or a savepoint"
    )
    add_storage_option(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", default=_DEFAULTS.proxy_ports, metavar="PORTS", help=_ports("client proxy"))
    serve.add_argument("--server-port", default=_DEFAULTS.server_ports, metavar="PORTS", help=_ports("state server"))
    serve.add_argument(
        "--token-file", default="", metavar="FILE", help=f"a file with the token, instead of ${TOKEN_VARIABLE}"
    )
    serve.add_argument(
        "--access-file", default="", metavar="FILE", help="a file with tokens and certificates, and what they may do"
    )
    serve.add_argument("--audit-log", action="store_true", help="log who asked for what and what was refused")
    serve.add_argument(
        "--allow-open-query-port",
        action="store_true",
        help=f"listen beyond loopback without a token (${TOKEN_VARIABLE} has the token otherwise)",
    )
    _add_tls(serve)
    serve.add_argument(
        "--metrics-port", default="", metavar="PORTS", help="ports for Prometheus metrics on --host (default: none)"
    )
    serve.add_argument(
        "--interval",
        type=float,
        default=DEFAULT_INTERVAL_S,
        metavar="SECONDS",
        help="time between two checks for newly committed epochs (default: %(default)s)",
    )
    serve.add_argument("--tracing", action="store_true", help="make OpenTelemetry spans for clients with tracing")
    serve.add_argument("--log-format", choices=FORMS, default=FORMS[0], help="form of the log (default: %(default)s)")
    serve.add_argument("--backend", default="heap", help="rocksdb for state larger than memory (default: %(default)s)")
    serve.add_argument(
        "--backend-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the backend; may be repeated",
    )
    serve.add_argument(
        "--descriptors",
        metavar="MODULE:NAME",
        help="an iterable of the job's descriptors, whose functions compute the results of aggregating states",
    )
    serve.set_defaults(run=_serve)


def _add_tls(serve: argparse.ArgumentParser) -> None:
    for name, what in (
        ("certificate", "the certificate of the query ports, which take TLS connections only then"),
        ("key", "the certificate's key, when it is in another file"),
        ("client-ca", "the authorities of client certificates, which clients need then"),
        ("ca", "the authorities by which the proxy verifies the state server (default: the system's)"),
    ):
        serve.add_argument(f"--tls-{name}", default="", metavar="FILE", help=f"{what} (PEM)")
    serve.add_argument(
        "--tls-client-certificate-optional",
        action="store_true",
        help="with --tls-client-ca, also serve clients without a certificate",
    )
    serve.add_argument(
        "--allow-token-without-tls",
        action="store_true",
        help="with a token, listen beyond loopback without TLS, where others on the network can read the token",
    )
    serve.add_argument(
        "--tls-server-name", default="", metavar="NAME", help="the name in the certificate, if it lacks the address"
    )


def _ports(what: str) -> str:
    return f"ports of the {what}, tried in order (default: %(default)s)"


def _serve(arguments: argparse.Namespace) -> None:
    configure_logs(LogLines(arguments.log_format, process="standby"))
    config = JobConfig(
        proxy_ports=arguments.port,
        server_ports=arguments.server_port,
        metrics_ports=arguments.metrics_port,
        metrics_bind=arguments.host,
        tracing=arguments.tracing,
        auth_token="" if arguments.token_file else os.environ.get(TOKEN_VARIABLE, ""),
        auth_token_file=arguments.token_file,
        access_file=arguments.access_file,
        audit_log=arguments.audit_log,
        allow_open_query_port=arguments.allow_open_query_port,
        allow_token_without_tls=arguments.allow_token_without_tls,
        tls_certificate_file=arguments.tls_certificate,
        tls_key_file=arguments.tls_key,
        tls_client_ca_file=arguments.tls_client_ca,
        tls_require_client_certificate=not arguments.tls_client_certificate_optional,
        tls_ca_file=arguments.tls_ca,
        tls_server_name=arguments.tls_server_name,
        backend=arguments.backend,
        backend_options=dict(map(_option, arguments.backend_option)),
        checkpoint_storage_options=storage_options(arguments),
    )
    if config.tracing:
        configure_tracing()
    standby = Standby(
        arguments.location,
        config,
        host=arguments.host,
        interval_s=arguments.interval,
        descriptors=_descriptors(arguments.descriptors) if arguments.descriptors else (),
    )
    sys.setswitchinterval(config.switch_interval_s)  # as in a task manager: loading state must not delay queries
    # Blocked before any thread starts, so that only `sigwait` receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        with standby:
            standby.start()
            host, port = standby.address
            print(f"serving {arguments.location} at {host}:{port}; Ctrl-C ends it", flush=True)
            signal.sigwait(_ENDS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--backend-option takes NAME=VALUE, as in block_cache_mib=256, got {text!r}")
    return name, value


def _descriptors(text: str) -> list[StateDescriptor]:
    """The descriptors at MODULE:NAME; MODULE may be in the working directory."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"--descriptors takes MODULE:NAME, as in flights.states:DESCRIPTORS, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"--descriptors {text}: {exc}") from exc
    listed = list(found) if isinstance(found, Iterable) else [found]
    for descriptor in listed:
        if not isinstance(descriptor, StateDescriptor):
            raise ConfigError(f"--descriptors {text}: expected state descriptors, got {descriptor!r}")
    return listed
