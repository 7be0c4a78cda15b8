"""The clients that ask the query port: one for each token of the gateway's callers.

Rules of this module: a caller's token goes to the query port as it is, and only with that caller's requests. So the
query port decides about each of them, and a caller gets no right through the gateway that it has not without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qstate.client import AsyncQueryableStateClient
from qstate.errors import ConfigError, Forbidden, Overloaded, Unauthenticated, WrongKeyType
from qstate.gateway.settings import GatewaySettings
from qstate.host.line_limit import limited
from qstate.values.text_forms import StateTypes

__all__ = ["Caller", "Upstream"]

log = limited(logging.getLogger(__name__))

#: The most clients that are open at a time; each has connections to the proxy and to owners.
MOST_CLIENTS = 256
#: The most tokens at a time that are tried at the query port.
MOST_CONNECTING = 64
#: How long the types of a state are taken as known. A get with keys of other types shows that they are not.
TYPES_S = 10.0
MOST_TYPES = 4096


class Caller:
    """The client for one token, and what it has learned. `users` are the requests and streams that use it now."""

    def __init__(self, client: AsyncQueryableStateClient) -> None:
        self.client = client
        self.users = 0
        self._types: dict[tuple[str, str], tuple[float, StateTypes]] = {}

    async def types(self, job: str, state: str, timeout_s: float) -> StateTypes:
        """The types of a state's keys and namespaces. Raises `ConfigError`, and the `QueryError` of the look-up."""
        known = self._types.get((job, state))
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        found = await self.client.locate(job, state, timeout_s=timeout_s)
        if len(self._types) >= MOST_TYPES:
            self._types.clear()
        types = StateTypes.of(found.state)
        self._types[job, state] = (time.monotonic() + TYPES_S, types)
        return types

    def forget_types(self) -> None:
        """The keys of some state have other types now."""
        self._types.clear()


class Upstream:
    """All clients of a gateway. Use it in one event loop; close it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._callers: OrderedDict[bytes | None, Caller] = OrderedDict()
        self._connecting: dict[bytes | None, asyncio.Task[Caller]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        #: Whether the query port is known to ask for tokens, or need not.
        self._guarded = settings.is_local or settings.allow_open_query_port

    @asynccontextmanager
    async def caller(self, token: bytes | None) -> AsyncIterator[Caller]:
        """The client of the callers with this token, None for those without one, while it is used.

        Raises the `QueryError` of a connection that cannot be made, such as `Unauthenticated`, and `Overloaded` when
        too many tokens are in use.
        """
        await self._check(token)
        caller = self._callers.get(token) or await self._connected(token)
        caller.users += 1
        if token in self._callers:
            self._callers.move_to_end(token)
        try:
            yield caller
        except WrongKeyType:
            caller.forget_types()
            raise
        finally:
            caller.users -= 1

    async def _connected(self, token: bytes | None) -> Caller:
        """Connect. All that wait for the same token share the connection."""
        connecting = self._connecting.get(token)
        if connecting is None:
            # A token that is not known to be good takes no place from one that is.
            if len(self._connecting) >= MOST_CONNECTING:
                raise Overloaded(reason="too many new tokens")
            connecting = asyncio.get_running_loop().create_task(self._connect_caller(token))
            self._connecting[token] = connecting
            connecting.add_done_callback(lambda _: self._connecting.pop(token, None))
        return await asyncio.shield(connecting)

    async def _connect_caller(self, token: bytes | None) -> Caller:
        caller = Caller(await self._connect(token))
        if len(self._callers) >= MOST_CLIENTS:
            idle = [other for other, found in self._callers.items() if not found.users]
            if not idle:
                await caller.client.close()
                raise Overloaded(reason="too many tokens in use")
            closing = asyncio.get_running_loop().create_task(self._callers.pop(idle[0]).client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._callers[token] = caller
        return caller

    async def _connect(self, token: bytes | None) -> AsyncQueryableStateClient:
        settings = self._settings
        (host, port), *others = settings.proxies
        return await AsyncQueryableStateClient.connect(
            host,
            port,
            proxies=others,
            fallback=settings.fallback,
            token=token,
            tls=settings.upstream_tls,
            allow_token_without_tls=settings.allow_token_without_tls,
        )

    async def _check(self, token: bytes | None) -> None:
        if token is not None and not self._settings.passes_tokens:
            raise Forbidden(reason="this gateway passes no tokens on, because it reaches the query port without TLS")
        try:
            await self.check_guarded()
        except ConfigError as exc:
            log.error("%s", exc)
            raise Forbidden(reason="this gateway serves no one, because its query port asks for no token") from exc

    async def check_guarded(self) -> None:
        """Raise `ConfigError` if a gateway beyond loopback would serve a query port that asks for no token."""
        if self._guarded:
            return
        try:
            client = await self._connect(None)
        except Unauthenticated:
            self._guarded = True
            return
        await client.close()
        raise ConfigError(
            "the query port lets the gateway in without a token, so everybody who reaches the gateway could read all "
            "state: let the job ask for a token, or give the gateway --allow-open-query-port"
        )

    async def close(self) -> None:
        """Close every client. Idempotent."""
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        callers, self._callers = list(self._callers.values()), OrderedDict()
        closing = (caller.client.close() for caller in callers)
        await asyncio.gather(*closing, *self._closing, *self._connecting.values(), return_exceptions=True)
