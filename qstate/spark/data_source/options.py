"""The options of the data source, checked, and the client that they describe.

Rules of this module: texts in, values or a `ConfigError` that says what to write out. It knows no states.

Options travel with the plan, and SQL has them in its text. So there is none for a secret: `token_file` names a file on
each host, or the variable QSTATE_TOKEN of the processes has the token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from qstate.checkpoint.storage.locations import absolute
from qstate.config import storage_option
from qstate.errors import ConfigError
from qstate.host.ports import parse_address
from qstate.runtime.control.auth_token import token_in
from qstate.serializers import MessagePackSerializer
from qstate.spark.data_source.feed_client import FeedClient
from qstate.tls import ClientTls
from qstate.values.stored_bytes import stored_bytes

__all__ = ["SourceOptions"]

DEFAULT_ADDRESS = "localhost:9069"
TOKEN_VARIABLE = "QSTATE_TOKEN"
STORAGE_PREFIX = "storage."
_SWITCHES = {"true": True, "false": False}
#: How options are written that have capitals, which Spark's names of options do not keep.
_WRITTEN = {one.lower(): one for one in ("readChangeFeed", "changeStartEpoch", "changeEndEpoch", "maxEpochsPerTrigger")}
_OF_CHANGES = frozenset(_WRITTEN) - {"readchangefeed"}
_OF_ROWS = frozenset(("keys", "prefix", "namespace"))
_SECRETS = ("token", "auth_token", "password")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options by their names; "" stands for one that was not given. `path` is that of stored state.

    Can be pickled; it holds no secret.
    """

    state: str = ""
    job: str = ""
    address: str = DEFAULT_ADDRESS
    isolation: str = ""
    readchangefeed: str = "false"
    keys: str = ""
    prefix: str = ""
    namespace: str | None = None
    key_columns: str = ""
    fallback: str = ""
    token_file: str = ""
    tls: str = "false"
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""
    allow_token_without_tls: str = "false"
    timeout_s: str = "10"
    patience_s: str = "60"
    maxepochspertrigger: str = ""
    changestartepoch: str = ""
    changeendepoch: str = ""
    path: str = ""
    operator: str = ""
    epoch: str = ""
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """The options as Spark gives them. Raises `ConfigError` for unknown names and for those that do not fit."""
        known = {one.name for one in fields(cls)} - {"storage"}
        found, storage = {}, {}
        for raw, text in given.items():
            name = raw.lower()
            if name.startswith(STORAGE_PREFIX):
                storage[name.removeprefix(STORAGE_PREFIX)] = storage_option(text)
            elif name in _SECRETS:
                raise ConfigError(
                    f"the data source takes no option {name!r}, which plans and logs would show: write the token into "
                    f"a file and give token_file, or set the variable {TOKEN_VARIABLE} of Spark's processes"
                )
            elif name not in known:
                raise ConfigError(f"the data source qstate has no option {name!r}; it has {_names(known)}")
            else:
                found[name] = text
        options = cls(**found, storage=storage)
        options._check(set(found))
        return options

    def _check(self, given: set[str]) -> None:
        if not self.state:
            raise ConfigError("give the state: .option('state', ...), by its queryable name")
        only_stored = given & {"operator", "epoch"}
        if not self.path:
            if not self.job:
                raise ConfigError(
                    "give the job: .option('job', ...); or the directory of stored state: .load('state/alerts')"
                )
            if only_stored or self.storage:
                raise ConfigError(f"{_names(only_stored or ['storage'])}: only for stored state, as in .load(path)")
        elif unfit := given - {"state", "path", "key_columns", *only_stored}:
            advice = "; select rows with where(...)" if unfit <= _OF_ROWS else ""
            raise ConfigError(f"{_names(unfit)}: not for stored state, only for a running job{advice}")
        if not self.changes and (unfit := given & _OF_CHANGES):
            raise ConfigError(f"{_names(unfit)}: only for the change feed; add .option('readChangeFeed', 'true')")
        if self.keys and self.prefix:
            raise ConfigError("give keys or a prefix, not both")
        if self.isolation not in ("", "live", "committed"):
            raise ConfigError(f"isolation must be live or committed, got {self.isolation!r}")
        for name in ("epoch", "changestartepoch", "changeendepoch"):
            self.number(name)

    @property
    def changes(self) -> bool:
        """Whether the change feed is read. Raises `ConfigError`, as the other properties do, for an unfit text."""
        return self._switch("readchangefeed")

    @property
    def most_epochs(self) -> int | None:
        """How many epochs a micro-batch of a stream has at most, None for any number. Raises `ConfigError`."""
        most = self.number("maxepochspertrigger")
        if most is not None and not 0 < most < 1 << 31:
            raise ConfigError(f"maxEpochsPerTrigger must be 1 or more, got {most}")
        return most

    def number(self, name: str) -> int | None:
        """The number of epochs, or of an epoch, of an option, None if it was not given. Raises `ConfigError`."""
        text = getattr(self, name)
        if text and not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise ConfigError(f"{_names([name])} must be the number of an epoch, or of epochs, got {text!r:.80}")
        return int(text) if text else None

    @property
    def key_names(self) -> list[str]:
        """The names of the key's columns, empty for the usual ones."""
        return [name.strip() for name in self.key_columns.split(",")] if self.key_columns else []

    @property
    def location(self) -> str:
        """Where stored state is, for every process."""
        return absolute(self.path)

    def client(self, serializer: str = MessagePackSerializer.name) -> FeedClient:
        """A client. Values of another serializer than the default one are their bytes. Raises `ConfigError`."""
        (host, port), *others = _addresses("address", self.address)
        own = [] if serializer == MessagePackSerializer.name else [stored_bytes(serializer)]
        files = (self.tls_ca_file, self.tls_certificate_file, self.tls_key_file, self.tls_server_name)
        token = token_in(self.token_file, "token_file") if self.token_file else os.environ.get(TOKEN_VARIABLE)
        return FeedClient(
            host,
            port,
            proxies=others,
            timeout_s=self.seconds("timeout_s"),
            token=token or None,
            serializers=own,
            fallback=_addresses("fallback", self.fallback) if self.fallback else (),
            tls=ClientTls(*files) if self._switch("tls") or any(files) else None,
            allow_token_without_tls=self._switch("allow_token_without_tls"),
        )

    def seconds(self, name: str) -> float:
        """The seconds of an option. Raises `ConfigError`."""
        text = getattr(self, name)
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number of seconds, got {text!r}") from None

    def _switch(self, name: str) -> bool:
        text = getattr(self, name)
        if text.lower() not in _SWITCHES:
            raise ConfigError(f"{_names([name])} must be true or false, got {text!r}")
        return _SWITCHES[text.lower()]


def _names(options: Iterable[str]) -> str:
    return ", ".join(sorted(_WRITTEN.get(one, one) for one in options))


def _addresses(option: str, text: str) -> list[tuple[str, int]]:
    return [parse_address(option, part) for part in text.split(",")]
