"""The ASGI application: which request goes where.

Rules of this module: it puts the parts together; each part is elsewhere. `openapi` describes the same routes; a test
compares them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from qstate.errors import QStateError
from qstate.gateway.feeds import Feeds
from qstate.gateway.figures import JobFigures
from qstate.gateway.guards import Guards, Places, address_of
from qstate.gateway.problems import answer_to
from qstate.gateway.reads import Reads
from qstate.gateway.settings import GatewaySettings
from qstate.gateway.streams import Streams
from qstate.gateway.upstream import Upstream

__all__ = ["Gateway"]

PAGE = Path(__file__).parent / "page"
#: Smaller answers gain nothing.
LEAST_COMPRESSED = 1024

_Endpoint = Callable[[Request], Awaitable[Response]]


class Gateway:
    """The parts of one gateway, and the application that serves them. Use it in one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.upstream = Upstream(settings)
        self.feeds = Feeds(self.upstream)
        self._figures = JobFigures(settings.job_metrics)
        self._requests = Places("requests", settings.max_requests, settings.max_requests)
        self._streams = Places("streams", settings.max_streams, settings.max_streams_per_address)
        self.app = Starlette(
            routes=self._routes(),
            middleware=_middleware(settings),
            exception_handlers={QStateError: _failed, HTTPException: _failed, Exception: _failed},
            lifespan=self._lifespan,
        )

    def _routes(self) -> list[Any]:
        reads, streams = Reads(self.upstream, self._figures), Streams(self.upstream, self.feeds, self._streams)
        job, state = "/v1/jobs/{job}", "/v1/jobs/{job}/states/{state}"
        return [
            Route("/v1/jobs", self._bounded(reads.jobs)),
            Route(job, self._bounded(reads.job)),
            Route(f"{job}/states", self._bounded(reads.states)),
            Route(state, self._bounded(reads.state)),
            Route(f"{state}/value", self._bounded(reads.value)),
            Route(f"{state}/values", self._bounded(reads.values), methods=["POST"]),
            Route(f"{state}/entries", self._bounded(reads.entries)),
            Route(f"{state}/count", self._bounded(reads.count)),
            Route(f"{state}/namespaces", self._bounded(reads.namespaces)),
            Route(f"{state}/changes", streams.changes),
            WebSocketRoute(f"{state}/changes", streams.messages),
            Route("/healthz", _healthz),
            *([Mount("/", StaticFiles(directory=PAGE, html=True))] if PAGE.is_dir() else []),
        ]

    def _bounded(self, endpoint: _Endpoint) -> _Endpoint:
        async def bounded(request: Request) -> Response:
            address = address_of(request)
            self._requests.enter(address)
            try:
                return await endpoint(request)
            finally:
                self._requests.leave(address)

        return bounded

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """End streams and connections. Idempotent."""
        await self.feeds.close()
        await self._figures.close()
        await self.upstream.close()


def _middleware(settings: GatewaySettings) -> list[Middleware]:
    found = [Middleware(Guards, hosts=settings.served_hosts, origins=settings.origins)]
    if settings.origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "If-None-Match", "Last-Event-ID"],
                expose_headers=["ETag", "Retry-After"],
            )
        )
    return [*found, Middleware(GZipMiddleware, minimum_size=LEAST_COMPRESSED, compresslevel=5)]


async def _failed(request: Request, error: Exception) -> Response:
    return answer_to(request, error)


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")
