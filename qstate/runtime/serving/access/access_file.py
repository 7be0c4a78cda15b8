"""The access file: principals, their tokens or certificates, and what they may do, as TOML.

Rules of this module: one file in, rules out. A file that is wrong in any part is refused as a whole, with the place of
the fault: half of the rules may permit what the other half was to forbid.

    [principals.dashboard]
    tokens = ["9f86d081..."]                   SHA-256 of each token, from `qstate token`
    certificates = ["dashboard.example"]       common names or alternative names of certificates
    [[principals.dashboard.grants]]
    rights = ["read", "describe"]              read, scan, subscribe, describe
    jobs = ["flights"]                         `*` stands for any text
    states = ["last*"]
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from qstate.errors import ConfigError
from qstate.host.home import in_home
from qstate.host.private_files import open_trusted
from qstate.runtime.serving.access.rights import Grant, Principal, Right

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["MOST_BYTES", "AccessFile", "Stamp"]

MOST_BYTES = 1024 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")

#: What shows that a file has changed.
Stamp = tuple[int, int, int]


class AccessFile:
    """The principals of an access file, by the digests of their tokens and the names in their certificates.

    Raises `ConfigError` when the file cannot be read or is wrong.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.tokens: dict[str, Principal] = {}
        self.certificates: dict[str, Principal] = {}
        data, self.stamp = self._read()
        try:
            content = tomllib.loads(data.decode())
        except ValueError as exc:  # no UTF-8, or no TOML
            raise self._wrong("", f"is no TOML: {exc}") from None
        principals = self._table(content, "", {"principals"}).get("principals", {})
        for name, entry in self._table(principals, "principals").items():
            self._add(name, self._table(entry, f"principals.{name}", {"tokens", "certificates", "grants"}))
        if not self.tokens and not self.certificates:
            raise self._wrong("", "has no principal with a token or a certificate")

    def _read(self) -> tuple[bytes, Stamp]:
        try:
            with os.fdopen(open_trusted(in_home(self._path)), "rb") as file:
                found = os.fstat(file.fileno())
                data = file.read(MOST_BYTES + 1)
        except OSError as exc:
            raise self._wrong("", f"cannot be read: {exc.strerror}") from exc
        if len(data) > MOST_BYTES:
            raise self._wrong("", f"has more than {MOST_BYTES} bytes")
        return data, (found.st_mtime_ns, found.st_size, found.st_ino)

    def _add(self, name: str, entry: Mapping[str, Any]) -> None:
        place = f"principals.{name}"
        grants = entry.get("grants")
        if not isinstance(grants, list) or not grants:
            raise self._wrong(place, "needs grants, as in [[principals.NAME.grants]]")
        principal = Principal(name, [self._grant(f"{place}.grants", grant) for grant in grants])
        tokens = self._texts(entry, place, "tokens", empty=True)
        certificates = self._texts(entry, place, "certificates", empty=True)
        if not tokens and not certificates:
            raise self._wrong(place, "needs tokens or certificates")
        for token in tokens:
            if not _DIGEST.fullmatch(token):
                raise self._wrong(f"{place}.tokens", "takes SHA-256 digests of tokens, 64 digits: see `qstate token`")
        for found, known in ((tokens, self.tokens), (certificates, self.certificates)):
            for one in found:
                other = known.setdefault(one, principal)
                if other is not principal:
                    raise self._wrong(place, f"has a token or certificate of principals.{other.name}")

    def _grant(self, place: str, entry: Any) -> Grant:
        self._table(entry, place, {"rights", "jobs", "states"})
        known = {right.value: right for right in Right}
        rights = self._texts(entry, place, "rights")
        unknown = next((right for right in rights if right not in known), None)
        if unknown is not None:
            raise self._wrong(f"{place}.rights", f"has {unknown!r}; rights are {', '.join(known)}")
        return Grant(
            frozenset(known[right] for right in rights),
            self._texts(entry, place, "jobs"),
            self._texts(entry, place, "states"),
        )

    def _texts(self, entry: Mapping[str, Any], place: str, key: str, *, empty: bool = False) -> tuple[str, ...]:
        found = entry.get(key, [] if empty else None)
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
            raise self._wrong(f"{place}.{key}", "must be a list of texts")
        if not found and not empty:
            raise self._wrong(f"{place}.{key}", 'must not be empty; ["*"] stands for all')
        return tuple(found)

    def _table(self, entry: Any, place: str, keys: set[str] | None = None) -> Mapping[str, Any]:
        if not isinstance(entry, dict):
            raise self._wrong(place, "must be a table")
        unknown = sorted(entry.keys() - keys) if keys is not None else []
        if unknown:
            raise self._wrong(place, f"has {unknown[0]!r}; expected {', '.join(sorted(keys or ()))}")
        return entry

    def _wrong(self, place: str, fault: str) -> ConfigError:
        return ConfigError(f"the access file {self._path}: {f'{place} ' if place else ''}{fault}")
