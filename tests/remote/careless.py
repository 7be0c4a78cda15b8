"""S3 filesystems that ignore the condition of a write, for all requests or for some.

fsspec finds them by the protocols `careless` and `halfcareless` once this module is imported.
"""

from __future__ import annotations

from typing import Any

import fsspec
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

__all__ = ["CarelessFileSystem", "HalfCarelessFileSystem"]


class CarelessFileSystem(S3FileSystem):
    """Puts whatever comes."""

    protocol = "careless"

    async def _put_file(self, lpath: str, rpath: str, *args: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        await super()._put_file(lpath, rpath, *args, **kwargs)


class HalfCarelessFileSystem(S3FileSystem):
    """Puts whatever comes in parts."""

    protocol = "halfcareless"

    async def _call_s3(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "complete_multipart_upload":
            kwargs.pop("IfNoneMatch", None)
        return await super()._call_s3(method, *args, **kwargs)

    call_s3 = sync_wrapper(_call_s3)


fsspec.register_implementation("careless", CarelessFileSystem, clobber=True)
fsspec.register_implementation("halfcareless", HalfCarelessFileSystem, clobber=True)
