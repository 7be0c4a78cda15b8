"""The arguments that several commands share: `--storage-option NAME=VALUE` of a location, and `--tls-...`.

Rules of this module: argparse in, settings out. Every user of the host can read a command's arguments, so secrets
belong in the environment or in files.
"""

from __future__ import annotations

import argparse
from typing import Any

from qstate.config import storage_option
from qstate.errors import ConfigError
from qstate.tls import ClientTls

__all__ = ["add_client_tls", "add_storage_option", "client_tls", "storage_options"]


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add the argument to a command."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the object store, by its fsspec name (endpoint_url=..., anon=true); VALUE may be JSON; "
        "may be repeated; put secrets into the environment",
    )


def storage_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given. Raises `ConfigError`."""
    found = {}
    for text in arguments.storage_option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--storage-option takes NAME=VALUE, as in endpoint_url=http://host:9000, got {text!r}")
        found[name] = storage_option(value)
    return found


def add_client_tls(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a client that may use TLS."""
    parser.add_argument("--tls", action="store_true", help="connect with TLS, by the system's certificate authorities")
    for name, what in (
        ("ca", "the authorities of the servers' certificates, instead of the system's"),
        ("certificate", "this client's certificate, for servers that require one"),
        ("key", "the certificate's key, when it is in another file"),
    ):
        parser.add_argument(f"--tls-{name}", default="", metavar="FILE", help=f"{what} (PEM); implies --tls")
    parser.add_argument(
        "--tls-server-name", default="", metavar="NAME", help="the name in the servers' certificates; implies --tls"
    )
    parser.add_argument(
        "--allow-token-without-tls",
        action="store_true",
        help="send the token beyond loopback without TLS, where others on the network can read it",
    )


def client_tls(arguments: argparse.Namespace) -> ClientTls | None:
    """The TLS settings that were given; None without TLS. Raises `ConfigError`."""
    given = (arguments.tls_ca, arguments.tls_certificate, arguments.tls_key, arguments.tls_server_name)
    return ClientTls(*given) if arguments.tls or any(given) else None
