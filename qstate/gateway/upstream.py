"""The clients that ask the query port, one for each token of the gateway's callers, and the check that it asks for one.

Rules of this module: a caller's token goes to the query port as it is, and only with that caller's requests. So the
query port decides about each of them, and a caller gets no right through the gateway that it has not without it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from qstate.client import AsyncQueryableStateClient
from qstate.errors import ConfigError, Forbidden, Overloaded, QueryError, Unauthenticated, WrongKeyType
from qstate.gateway.settings import GatewaySettings
from qstate.host.line_limit import limited
from qstate.values.text_forms import StateTypes

__all__ = ["Caller", "PortGuard", "Upstream"]

log = limited(logging.getLogger(__name__))

#: The most clients that are open at a time; each has connections to the proxy and to owners.
MOST_CLIENTS = 256
#: The most tokens at a time that are tried at the query port.
MOST_CONNECTING = 64
#: How long the types of a state are taken as known. A get with keys of other types shows that they are not.
TYPES_S = 10.0
MOST_TYPES = 4096
#: How long a refusal counts for callers with a new token, and for those whose token the query port has accepted.
NEW_S, KNOWN_S = 1.0, 10.0


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


class PortGuard:
    """Checks that the query port asks for tokens, as a gateway beyond loopback wants it to.

    It looks again and again: a port may be replaced by an open one, and rules may be given to the gateway itself.

    `connect` makes a client without a token. Where the port need not ask for tokens (`needed` is False), all checks
    pass. Use it in one event loop.
    """

    def __init__(self, connect: Callable[[], Awaitable[AsyncQueryableStateClient]], *, needed: bool) -> None:
        self._connect = connect
        self._needed = needed
        #: When the port refused last; minus infinity before, and once it has not.
        self._refused_at = -math.inf
        self._looking = asyncio.Lock()
        self._in_background: asyncio.Task[None] | None = None

    async def check(self, *, known: bool = False) -> None:
        """Raise `ConfigError` if the port lets the gateway in, and the `QueryError` of a port that was never reached.

        For callers with a `known` token, a port that refused once is looked at in the background.
        """
        if not self._needed or self._is_fresh(KNOWN_S if known else NEW_S):
            return
        if not known or self._refused_at == -math.inf:
            await self._look()
        elif self._in_background is None or self._in_background.done():
            self._in_background = asyncio.create_task(self._look_for_the_log())

    async def close(self) -> None:
        """End a look that is under way. Idempotent."""
        if self._in_background is not None:
            self._in_background.cancel()
            await asyncio.gather(self._in_background, return_exceptions=True)

    def _is_fresh(self, seconds: float) -> bool:
        return time.monotonic() - self._refused_at < seconds

    async def _look(self) -> None:
        async with self._looking:
            if self._is_fresh(NEW_S):
                return
            try:
                client = await self._connect()
            except Unauthenticated:
                self._refused_at = time.monotonic()
                return
            except QueryError:
                if self._refused_at == -math.inf:
                    raise
                return  # a port that does not answer lets no caller in
            self._refused_at = -math.inf
            await client.close()
            raise ConfigError(
                "the query port lets the gateway in without a token, so everybody who reaches the gateway could read "
                "what the gateway may: let the job ask for tokens, show it a certificate that is no principal's, or "
                "give the gateway --allow-open-query-port"
            )

    async def _look_for_the_log(self) -> None:
        with suppress(QueryError):
            try:
                await self._look()
            except ConfigError as exc:
                log.error("%s", exc)


class Upstream:
    """All clients of a gateway. Use it in one event loop; close it."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._callers: OrderedDict[bytes | None, Caller] = OrderedDict()
        self._connecting: dict[bytes | None, asyncio.Task[Caller]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        needed = not (settings.is_local or settings.allow_open_query_port)
        self.guard = PortGuard(partial(self._connect, None), needed=needed)

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
            await self.guard.check(known=token in self._callers)
        except ConfigError as exc:
            log.error("%s", exc)
            raise Forbidden(reason="this gateway serves no one, because its query port asks for no token") from exc

    async def close(self) -> None:
        """Close every client. Idempotent."""
        await self.guard.close()
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        callers, self._callers = list(self._callers.values()), OrderedDict()
        closing = (caller.client.close() for caller in callers)
        await asyncio.gather(*closing, *self._closing, *self._connecting.values(), return_exceptions=True)
