"""How commands connect to a job: the options, the environment and the profile of addresses, token and TLS.

Rules of this module: arguments in, a client out; the one place that knows where a setting comes from. First come the
options, then the environment (`QSTATE_PROXY` is `--proxy`), then the profile, then the defaults. Every user of the host
can read a command's arguments, so a token comes from the environment or a file.

A profile's token is for the profile's own proxies: with others from an option or the environment, it is not sent.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qstate.cli.profiles import SETTINGS, profile
from qstate.client import QueryableStateClient
from qstate.errors import ConfigError
from qstate.host.ports import parse_address
from qstate.runtime.control.auth_token import token_in
from qstate.setting_values import WORDS, setting_value
from qstate.tls import ClientTls

__all__ = [
    "DEFAULT_PROXY",
    "TOKEN_VARIABLE",
    "Connection",
    "add_connection_options",
    "client_of",
    "connection_of",
    "inherit",
]

DEFAULT_PROXY = "localhost:9069"
DEFAULT_TIMEOUT_S = 5.0
PREFIX = "QSTATE_"
TOKEN_VARIABLE = f"{PREFIX}TOKEN"
PROFILE_VARIABLE = f"{PREFIX}PROFILE"
_TLS = ("tls_ca", "tls_certificate", "tls_key", "tls_server_name")


@dataclass(frozen=True, slots=True)
class Connection:
    """Whom to ask, and how."""

    proxies: Sequence[tuple[str, int]]
    fallback: Sequence[tuple[str, int]]
    timeout_s: float
    token: str | None = field(repr=False)
    tls: ClientTls | None
    allow_token_without_tls: bool

    def client(self, *, timeout_s: float | None = None) -> QueryableStateClient:
        """A client; `timeout_s` replaces that of the settings."""
        (host, port), *others = self.proxies
        return QueryableStateClient(
            host,
            port,
            proxies=others,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            token=self.token,
            tls=self.tls,
            allow_token_without_tls=self.allow_token_without_tls,
            direct=False,  # a connection to an owner would come too late for one request
            fallback=self.fallback,
        )


def add_connection_options(parser: argparse.ArgumentParser, *, queries: bool = True) -> None:
    """Add the options to a command. Without `queries`, the command itself sends none: no token and no time limit."""
    options = parser.add_argument_group(
        "connection", f"also from the environment ({PREFIX}PROXY for --proxy, ...) or from a profile"
    )
    options.add_argument(
        "--profile",
        metavar="PROFILE",
        help=f"the profile in ~/.config/qstate/profiles.toml (default: ${PROFILE_VARIABLE}, or 'default' if it exists)",
    )
    options.add_argument(
        "--proxy",
        action="append",
        metavar="HOST:PORT",
        help=f"a client proxy of the job (default: {DEFAULT_PROXY}); may be repeated, for others when one does not "
        "answer",
    )
    options.add_argument(
        "--fallback",
        action="append",
        metavar="HOST:PORT",
        help="a standby server for committed queries while the job does not answer; may be repeated",
    )
    if queries:
        options.add_argument(
            "--timeout", type=float, metavar="SECONDS", help=f"time limit of a request (default: {DEFAULT_TIMEOUT_S:g})"
        )
        options.add_argument(
            "--token-file", metavar="FILE", help=f"a file with the token, instead of ${TOKEN_VARIABLE}"
        )
    _add_tls(options)


def _add_tls(options: Any) -> None:
    yes: dict[str, Any] = {"action": "store_const", "const": True}
    options.add_argument("--tls", **yes, help="connect with TLS, by the system's certificate authorities")
    for name, what in (
        ("ca", "the authorities of the servers' certificates, instead of the system's"),
        ("certificate", "this client's certificate, for servers that require one"),
        ("key", "the certificate's key, when it is in another file"),
    ):
        options.add_argument(f"--tls-{name}", metavar="FILE", help=f"{what} (PEM); implies --tls")
    options.add_argument(
        "--tls-server-name", metavar="NAME", help="the name in the servers' certificates; implies --tls"
    )
    options.add_argument(
        "--allow-token-without-tls",
        **yes,
        help="send the token beyond loopback without TLS, where others on the network can read it",
    )


def inherit(arguments: argparse.Namespace, session: argparse.Namespace) -> None:
    """Take the connection options of a session that the arguments of a command do not have.

    A profile in the arguments stands for all of them.
    """
    if getattr(arguments, "profile", None) is not None:
        return
    for name in ("profile", *SETTINGS):
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, getattr(session, name, None))


def client_of(arguments: argparse.Namespace) -> QueryableStateClient:
    """A client with the settings of a command. Raises `ConfigError`."""
    return connection_of(arguments).client()


def connection_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """The settings of a command. Raises `ConfigError`."""
    given: dict[str, Any] = {name: getattr(arguments, name, None) for name in SETTINGS}
    found = {name: value for name, value in given.items() if value is not None}
    for name in SETTINGS:
        if name not in found and environment.get(f"{PREFIX}{name.upper()}"):
            found[name] = _of_environment(name, environment[f"{PREFIX}{name.upper()}"])
    own = dict(profile(getattr(arguments, "profile", None) or environment.get(PROFILE_VARIABLE) or None))
    if {"proxy", "fallback", "token", "token_file"} & found.keys():
        own.pop("token", None)
        own.pop("token_file", None)
    found = {**own, **found}
    if given["token_file"] is not None:
        found.pop("token", None)
    return Connection(
        proxies=[parse_address("--proxy", text) for text in found.get("proxy", [DEFAULT_PROXY])],
        fallback=[parse_address("--fallback", text) for text in found.get("fallback", [])],
        timeout_s=found.get("timeout", DEFAULT_TIMEOUT_S),
        token=_token(found),
        tls=_tls(found),
        allow_token_without_tls=found.get("allow_token_without_tls", False),
    )


def _of_environment(name: str, text: str) -> Any:
    kind = SETTINGS[name]
    if kind is list:
        return [one.strip() for one in text.split(",")]
    value = setting_value(kind, text)
    if value is None:
        raise ConfigError(f"{PREFIX}{name.upper()} must be {WORDS[kind]}, got {text!r}")
    return value


def _token(found: Mapping[str, Any]) -> str | None:
    if "token_file" not in found:
        return found.get("token")
    if "token" in found:
        raise ConfigError(f"{TOKEN_VARIABLE} and {PREFIX}TOKEN_FILE are both set; set one of them")
    return token_in(found["token_file"], "the token file")


def _tls(found: Mapping[str, Any]) -> ClientTls | None:
    given = [found.get(name, "") for name in _TLS]
    return ClientTls(*given) if found.get("tls") or any(given) else None
