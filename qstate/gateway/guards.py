"""What every request passes: the name in its Host header, its place among others, and the headers of every answer.

Rules of this module: ASGI in, ASGI out; it knows nothing of jobs and states.

A page of another site can make a browser send requests to a gateway on the same host, under a name of its own that
leads to 127.0.0.1 (DNS rebinding). The browser takes the answer as one of that site. So a gateway on loopback serves
only requests that name it as loopback. WebSockets know no CORS, so their Origin is checked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from qstate.errors import ConfigError, Forbidden, Overloaded, QStateError
from qstate.gateway.parameters import SLASH
from qstate.gateway.problems import answer_to
from qstate.tls import is_loopback

__all__ = ["Guards", "Places", "address_of"]

CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; connect-src 'self'; object-src 'none'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Places:
    """So many at a time, and so many of one address. 0 for one address is half of all, and no limit for loopback."""

    def __init__(self, what: str, most: int, most_per_address: int = 0) -> None:
        self._what = what
        self._most = most
        self._most_per_address = most_per_address
        self._taken: Counter[str] = Counter()
        self.taken = 0

    def enter(self, address: str) -> None:
        """Take a place, and `leave` it. Raises `Overloaded` when there is none."""
        most = self._most_per_address or (self._most if is_loopback(address) else max(1, self._most // 2))
        if self.taken >= self._most or self._taken[address] >= most:
            raise Overloaded(reason=f"too many {self._what}")
        self.taken += 1
        self._taken[address] += 1

    def leave(self, address: str) -> None:
        """Give the place back."""
        self.taken -= 1
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]

    @contextmanager
    def held(self, address: str) -> Iterator[None]:
        """Take a place, and give it back at the end. Raises `Overloaded` when there is none."""
        self.enter(address)
        try:
            yield
        finally:
            self.leave(address)


def address_of(request: HTTPConnection) -> str:
    """The address that a request comes from."""
    return request.client.host if request.client else ""


class Guards:
    """The middleware. `hosts`: the names that are served, all if there are none; `origins`: those of other pages."""

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._origins = set(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = [*message["headers"], *_RAW]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            # A copy: the server writes its own into its log.
            await self._app({**scope, "path": _path_of(scope)}, receive, guarded)
        elif scope["type"] == "http":
            await refusal(scope, receive, guarded)
        else:
            await receive()
            await WebSocket(scope, receive, guarded).send_denial_response(refusal)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        error: QStateError
        if self._hosts and _name_in(host) not in self._hosts:
            error = Forbidden(reason="the gateway is not served under the name in the header Host: see --allowed-host")
        elif scope["type"] == "websocket" and not self._is_own(headers.get("origin"), host):
            error = Forbidden(reason="pages of this origin may not connect: see --cors-origin")
        elif not _is_text(scope):
            error = ConfigError("the path and the query of a URL are text in UTF-8, percent-encoded")
        else:
            return None
        return answer_to(HTTPConnection(scope), error)

    def _is_own(self, origin: str | None, host: str) -> bool:
        """Whether it is the gateway's own page, a page that may connect, or no page."""
        if origin is None or origin in self._origins or "*" in self._origins:
            return True
        return urlsplit(origin).netloc.lower() == host.lower()


def _name_in(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_text(scope: Scope) -> bool:
    """Whether path and query are UTF-8: bytes that are not would be taken for other text."""
    raw: bytes = scope["raw_path"] + b"?" + scope["query_string"]
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        return False
    return True


def _path_of(scope: Scope) -> str:
    """The path, with the slashes that are within names apart from those between them."""
    raw: bytes = scope["raw_path"]
    if b"%" not in raw:
        return str(scope["path"])
    segments = raw.split(b"/")
    return "/".join(unquote_to_bytes(one).decode().replace("/", SLASH) for one in segments)
