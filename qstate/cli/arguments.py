"""The argument `--storage-option NAME=VALUE` of a location, which several commands share.

Rules of this module: argparse in, settings out. Every user of the host can read a command's arguments, so secrets
belong in the environment or in files.
"""

from __future__ import annotations

import argparse
from typing import Any

from qstate.config import storage_option
from qstate.errors import ConfigError

__all__ = ["add_storage_option", "storage_options"]


def add_storage_option(parser: argparse.ArgumentParser) -> None:
    """Add the argument to a command."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the object store, by its fsspec name (endpoint_url=..., anon=true); VALUE may be JSON; "
        "may be repeated; put secrets into the environment",
    )


def storage_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given. Raises `ConfigError`."""
    found = {}
    for text in arguments.storage_option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--storage-option takes NAME=VALUE, as in endpoint_url=http://host:9000, got {text!r}")
        found[name] = storage_option(value)
    return found
