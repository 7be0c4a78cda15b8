"""The argument `--storage-option NAME=VALUE` of commands that take a location.

Rules of this module: argparse in, the options of `qstate.checkpoint.storage.locations` out. Arguments can be read by
anybody on the host, so secrets belong into the environment or the configuration files of the store's package.
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
        help="of the object store that a URL names, as fsspec calls it (endpoint_url=..., anon=true); VALUE may be "
        "JSON; may be given several times; leave secrets to the environment",
    )


def storage_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given. Raises `ConfigError`."""
    found = {}
    for text in arguments.storage_option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--storage-option takes NAME=VALUE, as in endpoint_url=http://host:9000, got {text!r}")
        found[name] = storage_option(value)
    return found
