"""Checks of the clients' arguments, before anything is sent. Each error says what was given and what was expected.

Rules of this module: arguments in, values or `ConfigError` out. It knows neither connections nor the states of a
server; the server checks the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from random import Random
from typing import Any

from qstate.errors import ConfigError, Detail
from qstate.keys import Key, Namespace
from qstate.protocol.fields import MAX_INT64
from qstate.protocol.limits import MAX_NAME, MAX_TOKEN, Limits
from qstate.runtime.client.proxies import Proxies
from qstate.runtime.client.query import COMMITTED, LIVE, NO_OPTIONS, Query
from qstate.runtime.client.state_cache import Endpoints, StateCache, Way
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.pipelined_connection import ConnectionSettings
from qstate.serializers import Serializer
from qstate.tls import ClientTls
from qstate.views import serializers_by_name

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "ConnectionArguments",
    "addresses_text",
    "check_address",
    "check_name",
    "check_names",
    "check_timeout",
    "demands",
    "keys_of",
    "query_of",
]

DEFAULT_TIMEOUT_S = 10.0
ISOLATIONS = (LIVE, COMMITTED)
_COMMITTED_OPTIONS: Mapping[str, Detail] = {"isolation": COMMITTED}
_HOST_AND_PORT = re.compile(r"(?P<host>[^:/\[\]@\s]+|\[[^/\[\]@\s]+\]):(?P<port>\d+)")
#: Letters of any language, and the zone of an IPv6 address, as in fe80::1%eth0.
_HOST = re.compile(r"(?:[A-Za-z0-9._:-]|[^\x00-\x7f\s])+(?:%[^\x00-\x20\x7f/@\s]+)?")


def check_address(host: Any, port: Any) -> tuple[str, int]:
    """Return the address of a proxy. Raises `ConfigError`."""
    if not isinstance(host, str) or not host.strip():
        raise ConfigError(
            f"host must be the host name or IP address of a client proxy, such as 'localhost', got {host!r}"
        )
    if "/" in host:
        raise ConfigError(f"host must be a name or address, not a URL, as in 'localhost' with port 9069, got {host!r}")
    if found := _HOST_AND_PORT.fullmatch(host):
        name = found["host"].strip("[]")
        raise ConfigError(f"host and port are separate arguments: host={name!r}, port={found['port']}, got {host!r}")
    if host.startswith("[") and host.endswith("]"):
        raise ConfigError(f"host must be an IPv6 address without brackets, as in {host.strip('[]')!r}, got {host!r}")
    if not _HOST.fullmatch(host) or not _has_encoding(host, "idna"):
        raise ConfigError(
            "host must be one host name or IP address, without spaces or a user's name, such as 'localhost', "
            f"got {host!r}"
        )
    if type(port) is not int or not 0 < port < 65536:
        hint = f": pass {int(port)}, without quotes" if isinstance(port, str) and port.isdecimal() else ""
        raise ConfigError(f"port must be an integer from 1 to 65535, got {port!r}{hint}")
    return host, port


def addresses_text(endpoints: Endpoints) -> str:
    """The addresses of the job's proxies, for people."""
    found = list(endpoints.caches[0].proxies)
    text = ", ".join(f"{host}:{port}" for host, port in found[:3])
    return text if len(found) <= 3 else f"{text} and {len(found) - 3} more"


@dataclass
class ConnectionArguments:
    """What the caller says about a client's connections. `links` checks it and gives what a set of links needs.

    A client has links for gets, and others for subscriptions, whose requests may wait for long.
    """

    proxy: tuple[Any, Any]
    random: Random
    proxies: Iterable[tuple[str, int]]
    direct: bool | None
    serializers: Iterable[Serializer]
    fallback: Iterable[tuple[str, int]]
    token: str | bytes | None = field(repr=False)
    max_frame: int
    tls: ClientTls | None
    allow_token_without_tls: bool
    tracing: Tracing | None

    def __post_init__(self) -> None:
        self.proxies, self.serializers, self.fallback = map(
            _repeatable, (self.proxies, self.serializers, self.fallback)
        )

    def links(self) -> tuple[Endpoints, ConnectionSettings, Random, Tracing | None]:
        """The arguments of the links, with endpoints of their own.

        Raises `ConfigError` for values that no server accepts, and for a token that the network could see.
        """
        endpoints = self._endpoints()
        return endpoints, self._settings(endpoints), self.random, self.tracing

    def _endpoints(self) -> Endpoints:
        known = serializers_by_name(self.serializers)
        addresses = [check_address(*self.proxy), *_addresses("proxies", self.proxies)]
        if not isinstance(self.direct, bool | None):
            raise ConfigError(f"direct must be True, False or None, got {self.direct!r}")
        way = Way.REACHED if self.direct is None else Way.OWNERS if self.direct else Way.PROXY
        elsewhere = [
            StateCache(Proxies([other], self.random), way=Way.PROXY, serializers=known)
            for other in _addresses("fallback", self.fallback)
        ]
        return Endpoints([StateCache(Proxies(addresses, self.random), way=way, serializers=known), *elsewhere])

    def _settings(self, endpoints: Endpoints) -> ConnectionSettings:
        token = _token_bytes(self.token)
        if type(self.max_frame) is not int:
            raise ConfigError(f"max_frame must be a number of bytes, got {self.max_frame!r}")
        Limits(max_frame=self.max_frame)
        if self.tls is not None and not isinstance(self.tls, ClientTls):
            raise ConfigError(
                f"tls must be a qstate.client.ClientTls, as in tls=ClientTls(ca_file=...), got {self.tls!r}"
            )
        if not isinstance(self.allow_token_without_tls, bool):
            raise ConfigError(f"allow_token_without_tls must be True or False, got {self.allow_token_without_tls!r}")
        settings = ConnectionSettings(
            token,
            "qstate-python",
            self.max_frame,
            tls=self.tls,
            allow_token_without_tls=self.allow_token_without_tls,
        )
        for host in (address[0] for cache in endpoints.caches for address in cache.proxies):
            if settings.exposes_token(host):
                raise ConfigError(
                    f"the token would go to {host} without TLS, where any server may answer and others could read it: "
                    "give tls=ClientTls(...) (--tls-ca on the command line), or, on a network that you trust, "
                    "allow_token_without_tls=True (--allow-token-without-tls)"
                )
        return settings


def _token_bytes(token: str | bytes | None) -> bytes | None:
    if token is not None and not isinstance(token, str | bytes):
        raise ConfigError(f"token must be text or bytes, got {type(token).__name__}")
    if isinstance(token, str) and not _has_encoding(token, "utf-8"):
        raise ConfigError("token must be bytes, or text without lone surrogates")
    data = token.encode() if isinstance(token, str) else token
    if data is not None and len(data) > MAX_TOKEN:
        raise ConfigError(f"a token has at most {MAX_TOKEN} bytes, got {len(data)}")
    return data


def _repeatable(given: Any) -> Any:
    """An iterable so that it can be read again, anything else as it is: the checks refuse it."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def check_timeout(timeout_s: float, name: str = "timeout_s") -> float:
    """Return the timeout. Raises `ConfigError` unless it is above zero and finite: every request has a deadline."""
    if not _is_number(timeout_s) or not 0 < timeout_s < math.inf:
        raise ConfigError(f"{name} must be seconds above zero and finite, got {timeout_s!r}")
    return timeout_s


def query_of(
    job: Any,
    state: Any,
    namespace: Namespace,
    isolation: str,
    *,
    min_epoch: int | None = None,
    max_staleness_s: float | None = None,
    wait_s: float | None = None,
) -> Query:
    """Return the query of a call. Raises `ConfigError`; `check_names` and `Query.check_keys` check the rest."""
    if isolation not in ISOLATIONS:
        raise ConfigError(f"isolation must be one of {', '.join(map(repr, ISOLATIONS))}, got {isolation!r}")
    options = NO_OPTIONS if isolation == LIVE else _COMMITTED_OPTIONS
    if min_epoch is not None or max_staleness_s is not None or wait_s is not None:
        options = {**options, **demands(min_epoch, max_staleness_s, wait_s)}
    return Query(job, state, namespace, isolation, options)


def check_names(job: Any, state: Any) -> None:
    """Raise `ConfigError` unless a job and a state can have these names."""
    check_name("job", job)
    check_name("state", state)


def check_name(which: str, name: Any) -> None:
    """Raise `ConfigError` unless the value can be a name."""
    if not isinstance(name, str):
        raise ConfigError(f"{which} must be text, the name of a {which}, got {type(name).__name__}: {name!r}")
    if not 0 < len(name) <= MAX_NAME:
        raise ConfigError(f"{which} must be a name of 1 to {MAX_NAME} characters, got {len(name)}")
    if not _has_encoding(name, "utf-8"):
        raise ConfigError(f"{which} must be a name that UTF-8 can encode, without lone surrogates, got {name!r}")


def keys_of(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Return the keys of a call as a tuple. Raises `ConfigError` for a single key."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise ConfigError(f"keys must be a list of keys, as in [{keys!r}], got {keys!r}")
    return tuple(keys)


def demands(min_epoch: int | None, max_staleness_s: float | None, wait_s: float | None) -> Mapping[str, Detail]:
    """Return a get's options for a least epoch, a bound of staleness and a time to wait. Raises `ConfigError`."""
    wanted: dict[str, Detail] = {}
    if min_epoch is not None:
        if type(min_epoch) is not int or not 0 <= min_epoch <= MAX_INT64:
            raise ConfigError(f"min_epoch must be an epoch's number, such as a view's epoch, got {min_epoch!r}")
        wanted["min_epoch"] = min_epoch
    for name, seconds in (("max_staleness", max_staleness_s), ("wait", wait_s)):
        if seconds is not None:
            if not _is_number(seconds) or not 0 <= seconds < math.inf:
                raise ConfigError(f"{name}_s must be seconds, from zero and finite, got {seconds!r}")
            wanted[f"{name}_ms"] = round(min(seconds * 1000, MAX_INT64))
    return wanted


def _addresses(name: str, given: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the addresses that an argument lists. Raises `ConfigError`."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{name} takes a list of (host, port), as in [('standby', 9069)], got {given!r}")
    addresses = []
    for address in given:
        try:
            host, port = address
            addresses.append(check_address(host, port))
        except (TypeError, ValueError, ConfigError) as exc:
            why = f": {exc}" if isinstance(exc, ConfigError) else ""
            raise ConfigError(
                f"{name} takes (host, port) of each proxy, as in [('standby', 9069)], got {address!r}{why}"
            ) from None
    return addresses


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _has_encoding(text: str, encoding: str) -> bool:
    """Whether UTF-8 can encode it: a lone surrogate is no character. Or IDNA: no label is empty or too long."""
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True
