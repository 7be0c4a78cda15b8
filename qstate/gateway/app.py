"""The ASGI application: which request goes where.

Rules of this module: it puts the parts together; each part is elsewhere. `openapi` describes the same routes; a test
compares them.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from qstate.errors import QStateError
from qstate.gateway.feeds import Feeds
from qstate.gateway.figures import JobFigures
from qstate.gateway.files import file_routes
from qstate.gateway.guards import Guards, Places, address_of
from qstate.gateway.metrics import MEDIA_TYPE, GatewayMetrics
from qstate.gateway.openapi import document
from qstate.gateway.problems import answer_to
from qstate.gateway.reads import Reads
from qstate.gateway.settings import GatewaySettings
from qstate.gateway.streams import Streams
from qstate.gateway.upstream import Upstream

__all__ = ["Gateway"]

PAGE = Path(__file__).parent / "page"
#: The page that tries the API.
TRY = Path(__file__).parent / "try"
#: Smaller answers gain nothing.
LEAST_COMPRESSED = 1024
#: In the header Accept-Encoding: a caller that does not take gzip.
_NO_GZIP = re.compile(rb"(?:^|,)\s*gzip\s*;\s*q=0(?:\.0*)?\s*(?:,|$)", re.IGNORECASE)

_DOCUMENT = json.encode(document())
_Endpoint = Callable[[Request], Awaitable[Response]]


class Gateway:
    """The parts of one gateway, and the application that serves them. Use it in one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.upstream = Upstream(settings)
        self.feeds = Feeds(self.upstream)
        self._figures = JobFigures(settings.job_metrics)
        self._requests = Places("requests", settings.max_requests, settings.max_requests_per_address)
        self._streams = Places("streams", settings.max_streams, settings.max_streams_per_address)
        self._metrics = GatewayMetrics(lambda: self._streams.taken, lambda: len(self.feeds))
        self.app = Starlette(
            routes=self._routes(),
            middleware=_middleware(settings),
            exception_handlers={QStateError: _failed, HTTPException: _failed, Exception: _failed},
            lifespan=self._lifespan,
        )
        # A redirect would name the scheme that the gateway speaks, not that of a proxy before it.
        self.app.router.redirect_slashes = False

    def _routes(self) -> list[Any]:
        reads = Reads(self.upstream, self._figures)
        streams = Streams(self.upstream, self.feeds, self._streams, self._metrics)
        job, state = "/v1/jobs/{job}", "/v1/jobs/{job}/states/{state}"
        return [
            self._route("/v1/jobs", reads.jobs),
            self._route(job, reads.job),
            self._route(f"{job}/states", reads.states),
            self._route(state, reads.state),
            self._route(f"{state}/value", reads.value),
            self._route(f"{state}/values", reads.values, "POST"),
            self._route(f"{state}/entries", reads.entries),
            self._route(f"{state}/count", reads.count),
            self._route(f"{state}/namespaces", reads.namespaces),
            Route(f"{state}/changes", streams.changes),
            WebSocketRoute(f"{state}/changes", streams.messages),
            Route("/healthz", _healthz),
            Route("/metrics", self._scrape),
            Route("/openapi.json", _openapi),
            *file_routes(PAGE, TRY),
        ]

    def _route(self, path: str, endpoint: _Endpoint, method: str = "GET") -> Route:
        """A route whose requests have a place, and are counted."""

        async def counted(request: Request) -> Response:
            began = time.monotonic()
            try:
                with self._requests.held(address_of(request)):
                    answer = await endpoint(request)
            except QStateError as exc:
                answer = answer_to(request, exc)
            self._metrics.answered(path, answer.status_code, time.monotonic() - began)
            return answer

        return Route(path, counted, methods=[method])

    async def _scrape(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=MEDIA_TYPE)

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


class _Compression(GZipMiddleware):
    """Compresses for those who ask. Starlette looks for the word only, and compresses for `gzip;q=0`, too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if not _refuses_gzip(name, value)]
            scope = {**scope, "headers": headers}
        await super().__call__(scope, receive, send)


def _refuses_gzip(name: bytes, value: bytes) -> bool:
    return name == b"accept-encoding" and _NO_GZIP.search(value) is not None


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
    return [*found, Middleware(_Compression, minimum_size=LEAST_COMPRESSED, compresslevel=5)]


async def _failed(request: Request, error: Exception) -> Response:
    return answer_to(request, error)


async def _openapi(_: Request) -> Response:
    return Response(_DOCUMENT, media_type="application/json")


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("ok\n")
