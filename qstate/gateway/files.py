"""The files of the gateway's own pages, served from memory.

Rules of this module: it reads two directories of this package once. Each file is a route, so no path of a request ever
reaches the file system.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from xxhash import xxh64_hexdigest

__all__ = ["file_routes"]

INDEX = "index.html"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def file_routes(*directories: Path) -> list[Route]:
    """A route for every file below these directories; one of the first directory counts if names are the same."""
    routes: dict[str, Route] = {}
    for directory in directories:
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                name = file.relative_to(directory).as_posix()
                path = "/" if name == INDEX else f"/{name}"
                routes.setdefault(path, Route(path, _endpoint(file)))
    return [*routes.values(), Route(f"/{INDEX}", routes["/"].endpoint)]


def _endpoint(file: Path) -> Callable[[Request], Awaitable[Response]]:
    data = file.read_bytes()
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    tag = f'"{xxh64_hexdigest(data)}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=kind)

    return answer
