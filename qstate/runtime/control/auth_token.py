"""The token that clients must present. The config has it, or names a file that has it.

Rules of this module: settings in, a token out; it reads that one file. Its messages never contain the token.
"""

from __future__ import annotations

import os

from qstate.config import JobConfig
from qstate.errors import ConfigError
from qstate.host.home import in_home
from qstate.host.private_files import open_trusted
from qstate.protocol.limits import MAX_TOKEN

__all__ = ["token_in", "with_token"]


def with_token(config: JobConfig) -> JobConfig:
    """The config with its token in it. Raises `ConfigError` when the token's file has no valid token."""
    if not config.auth_token_file:
        return config
    if config.auth_token:
        raise ConfigError("auth_token and auth_token_file are both set; give one of them")
    return config.merged(auth_token=token_in(config.auth_token_file, "auth_token_file"), auth_token_file="")


def token_in(file: str, setting: str) -> str:
    """The token in the file that a setting names. Raises `ConfigError` when there is no valid one."""
    path = in_home(file)
    try:
        with os.fdopen(open_trusted(path), "rb") as opened:
            data = opened.read(MAX_TOKEN + len("\r\n") + 1).rstrip(b"\r\n")
    except OSError as exc:
        raise ConfigError(f"{setting} {path} cannot be read: {exc.strerror}") from exc
    if not 0 < len(data) <= MAX_TOKEN:
        raise ConfigError(f"{setting} {path} must hold a token of 1 to {MAX_TOKEN} bytes and nothing else")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{setting} {path} must hold text in UTF-8") from None
