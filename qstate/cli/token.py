"""The command `qstate token`: makes a token for an access file, or computes what the file keeps of one.

Rules of this module: a token goes to standard output or comes from standard input, never through an argument, which
every user of the host can read.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

from qstate.errors import ConfigError
from qstate.protocol.limits import MAX_TOKEN
from qstate.runtime.serving.access.rights import digest_of

__all__ = ["add_token_command"]

TOKEN_BYTES = 32


def add_token_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    token: argparse.ArgumentParser = commands.add_parser(
        "token", help="make a random token for clients, and the digest of it for an access file"
    )
    token.add_argument(
        "--digest", action="store_true", help="print the digest of the token in the first line of standard input"
    )
    token.set_defaults(run=_token)


def _token(arguments: argparse.Namespace) -> None:
    if arguments.digest:
        given = sys.stdin.readline().rstrip("\r\n").encode()
        if not 0 < len(given) <= MAX_TOKEN:
            raise ConfigError(f"expected a token of 1 to {MAX_TOKEN} bytes in the first line of standard input")
        print(digest_of(given))
        return
    made = secrets.token_urlsafe(TOKEN_BYTES)
    print(f"token   {made}")
    print(f"digest  {digest_of(made.encode())}")
