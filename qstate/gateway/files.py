"""The files of the gateway's own pages, served from memory.

Rules of this module: it reads two directories of this package once. A request only looks a name up, so no path of a
request ever reaches the file system.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from xxhash import xxh64_hexdigest

__all__ = ["Files"]

INDEX = "index.html"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Files:
    """An endpoint for every file below these directories; one of the first directory counts if names are the same."""

    def __init__(self, *directories: Path) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for directory in directories:
            for file in sorted(directory.rglob("*")):
                if file.is_file():
                    data = file.read_bytes()
                    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                    name = file.relative_to(directory).as_posix()
                    self._files.setdefault(name, (data, kind, f'"{xxh64_hexdigest(data)}"'))

    async def file(self, request: Request) -> Response:
        """The file at a path; the index at the root."""
        found = self._files.get(request.path_params["path"] or INDEX)
        if found is None:
            raise HTTPException(404)
        data, kind, tag = found
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers, media_type=kind)
