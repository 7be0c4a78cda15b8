"""What a request asks for: its names, its query and its body, checked.

Rules of this module: text in, arguments of the client out; `ConfigError` says which parameter is wrong. A parameter
that is not known is refused, so that a slip of the pen is no silent default.
"""

from __future__ import annotations

import asyncio
import math
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection, Request

from qstate.errors import ConfigError, DeadlineExceeded, TooLarge
from qstate.keys import Column, ColumnType, Key, Namespace
from qstate.protocol.limits import MAX_TOKEN
from qstate.values.text_forms import StateTypes, namespace_of, parse_columns, parse_key, parse_namespace

__all__ = ["BatchBody", "Parameters", "body_of", "name_of", "refuse_parameters", "token_of"]

DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S = 5.0, 30.0
MOST_BODY_BYTES = 1 << 20
BODY_TIMEOUT_S = 10.0
MOST_KEYS = 1000
#: Stands for `/` within a name of a path. No name contains it: it cannot be encoded.
SLASH = "\udc2f"
#: How a browser gives a token with a WebSocket, to which it can add no header.
TOKEN_PROTOCOL = "bearer."

Body = TypeVar("Body")
Value = TypeVar("Value")


class BatchBody(Struct, forbid_unknown_fields=True):
    """The body of a batch of gets."""

    keys: Annotated[list[Any], Meta(min_length=1, max_length=MOST_KEYS)]
    namespace: Any = None
    isolation: str = "live"
    min_epoch: int | None = None
    max_staleness: float | None = None
    wait: float | None = None
    timeout: float = DEFAULT_TIMEOUT_S

    def demands(self, types: StateTypes) -> dict[str, Any]:
        """The arguments of a get of a state of these types. Raises `ConfigError` and `WrongKeyType`."""
        return {
            "namespace": namespace_of(self.namespace, types.namespaces),
            "isolation": self.isolation,
            "min_epoch": self.min_epoch,
            "max_staleness_s": self.max_staleness,
            "wait_s": self.wait,
            "timeout_s": self.timeout_s,
        }

    @property
    def timeout_s(self) -> float:
        """The seconds until the answer. Raises `ConfigError`."""
        return _timeout(self.timeout)


class Parameters:
    """The query of a request. Raises `ConfigError` for parameters other than `known` and `timeout`."""

    def __init__(self, query: QueryParams, *known: str) -> None:
        self._query = query
        unknown = sorted(query.keys() - {*known, "timeout"})
        if unknown:
            names = ", ".join((*known, "timeout"))
            raise ConfigError(f"there is no parameter {unknown[0]!r:.80} here; there are {names}")
        given = self.seconds("timeout")
        self.timeout_s = _timeout(DEFAULT_TIMEOUT_S if given is None else given)

    def __contains__(self, name: str) -> bool:
        return name in self._query

    def text(self, name: str, default: str | None = None) -> str | None:
        """The one value of a parameter. Raises `ConfigError` when there are several."""
        found = self._query.getlist(name)
        if len(found) > 1:
            raise ConfigError(f"the parameter {name} must be given once")
        return found[0] if found else default

    def number(self, name: str) -> int | None:
        """A whole number. Raises `ConfigError`."""
        return self._read(name, int, "a whole number")

    def seconds(self, name: str) -> float | None:
        """A number of seconds. Raises `ConfigError`."""
        return self._read(name, float, "seconds")

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises `ConfigError`."""
        found = self._read(name, {"true": True, "false": False}.__getitem__, "true or false")
        return default if found is None else found

    def key(self, types: StateTypes) -> Key:
        """The key. Raises `ConfigError`."""
        return parse_key(self._query.getlist("key"), types.keys)

    def namespace(self, types: StateTypes) -> Namespace:
        """The namespace, the void one without the parameter. Raises `ConfigError` and `WrongKeyType`."""
        return parse_namespace(self.text("namespace"), types.namespaces)

    def prefix(self, types: StateTypes) -> str | bytes | tuple[Column, ...] | None:
        """The prefix of keys: `begins`, or whole columns. Raises `ConfigError`."""
        begins = self.text("begins")
        columns = self._query.getlist("column")
        if begins is None:
            return parse_columns(columns, types.keys) if columns else None
        if columns:
            raise ConfigError("begins and column exclude each other")
        first = types.keys[0]
        if first not in (ColumnType.STRING, ColumnType.BINARY):
            raise ConfigError(f"begins is for a first key column of text or binary, this one is {first.value}")
        (prefix,) = parse_columns([begins], types.keys)
        return prefix if isinstance(prefix, str | bytes) else None

    def demands(self, types: StateTypes) -> dict[str, Any]:
        """The arguments of a get of a state of these types. Raises `ConfigError` and `WrongKeyType`."""
        return {
            "namespace": self.namespace(types),
            "isolation": self.text("isolation", "live"),
            "min_epoch": self.number("min_epoch"),
            "max_staleness_s": self.seconds("max_staleness"),
            "wait_s": self.seconds("wait"),
            "timeout_s": self.timeout_s,
        }

    def selection(self, types: StateTypes) -> dict[str, Any]:
        """The arguments of a scan, without its prefix. Raises `ConfigError` and `WrongKeyType`."""
        found: dict[str, Any] = {"isolation": self.text("isolation", "live"), "timeout_s": self.timeout_s}
        return found | ({"namespace": self.namespace(types)} if "namespace" in self else {})

    def _read(self, name: str, read: Callable[[str], Value], form: str) -> Value | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return read(text)
        except (ValueError, KeyError):
            raise ConfigError(f"the parameter {name} must be {form}, got {text!r:.80}") from None


def refuse_parameters(query: QueryParams) -> None:
    """Raise `ConfigError` if there is a query: all that this request takes is in its body."""
    if query:
        raise ConfigError(f"there is no parameter {min(query.keys())!r:.80} here: the body has all; there are none")


def _timeout(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise ConfigError(f"timeout must be seconds above zero, got {seconds}")
    return min(seconds, LONGEST_TIMEOUT_S)


def name_of(request: HTTPConnection, which: str) -> str:
    """A name in the path."""
    found: str = request.path_params[which]
    return found.replace(SLASH, "/")


def token_of(request: HTTPConnection) -> bytes | None:
    """The caller's token, None without one. Raises `ConfigError` for what no token can be."""
    given = request.headers.get("authorization")
    if given is None:
        return _token_of_protocols(request)
    scheme, _, token = given.partition(" ")
    data = token.encode("latin-1").strip()
    if scheme.lower() != "bearer" or not 0 < len(data) <= MAX_TOKEN:
        raise ConfigError(f"the header Authorization must be: Bearer TOKEN, with a token of at most {MAX_TOKEN} bytes")
    return data


def _token_of_protocols(request: HTTPConnection) -> bytes | None:
    given = [one for one in request.scope.get("subprotocols", ()) if one.startswith(TOKEN_PROTOCOL)]
    if not given:
        return None
    text = given[0].removeprefix(TOKEN_PROTOCOL)
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if not 0 < len(data) <= MAX_TOKEN:
        raise ConfigError(f"the subprotocol {TOKEN_PROTOCOL}... must have a token in URL-safe base 64")
    return data


async def body_of(request: Request, kind: type[Body]) -> Body:
    """The JSON body of a request. Raises `ConfigError`, `TooLarge`, and `DeadlineExceeded` when it does not arrive."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ConfigError("the body must be JSON: send the header Content-Type: application/json")
    try:
        data = await asyncio.wait_for(_bytes_of(request), BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(field="body", seconds=BODY_TIMEOUT_S) from None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the body does not have the form of the reference: {exc!s:.200}") from None


async def _bytes_of(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY_BYTES:
            raise TooLarge(field="body", limit=MOST_BODY_BYTES)
    return bytes(data)
