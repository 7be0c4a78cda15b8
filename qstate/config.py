"""The job config: every setting, its key, default and meaning, in one table.

Rules of this module: it knows names, types and defaults; it must not know what the values are used for. A user writes
the same settings in Python (`JobConfig(backend="heap")`) or as Spark conf keys (`spark.qstate.backend=heap`); Python
overrides the Spark conf.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from qstate.errors import ConfigError
from qstate.host.log_lines import FORMS
from qstate.host.ports import ports_text
from qstate.keys import DEFAULT_MAX_PARALLELISM, check_max_parallelism
from qstate.setting_values import MAX_FRAME_LIMIT, MIN_MAX_FRAME, WORDS, setting_value

__all__ = ["SPARK_PREFIX", "JobConfig", "option_table", "storage_option"]

SPARK_PREFIX = "spark.qstate."
COMPRESSIONS = ("none", "lz4", "zstd")
BACKEND_OPTION_PREFIX = "backend."
STORAGE_OPTION_PREFIX = "checkpoint.storage."
#: Fields that are maps: in the Spark conf each entry has its own key.
_MAPS = frozenset(("backend_options", "checkpoint_storage_options"))


def _option(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The settings of one job. Frozen; `from_spark` and `merged` return new ones.

    The field `proxy_network_threads` has the Spark conf key `spark.qstate.proxy.network.threads`, and so on. An option
    of a backend is an entry of `backend_options`, or the key `spark.qstate.backend.<option>`. An option of the
    checkpoints' object store is an entry of `checkpoint_storage_options`, or the key
    `spark.qstate.checkpoint.storage.<option>`.
    """

    backend: str = _option("heap", "the state backend: heap, rocksdb, or a name that an installed package registers")
    backend_options: Mapping[str, Any] = field(default_factory=dict, metadata={"doc": "the backend's own options"})
    parallelism: int = _option(0, "subtasks per operator; 0: Spark's default parallelism")
    max_parallelism: int = _option(DEFAULT_MAX_PARALLELISM, "key groups, the upper bound of parallelism; 1 to 32768")
    slots: int = _option(1, "subtask indexes that share one task manager process")
    checkpoint_dir: str = _option(
        "",
        "directory of the checkpoints, or URL of an object store (s3://bucket/state); empty: a temporary directory "
        "that stop() deletes",
    )
    checkpoint_storage_options: Mapping[str, Any] = field(
        default_factory=dict,
        repr=False,  # they may contain credentials
        metadata={"doc": "options of the object stores of checkpoint_dir, restore_from and savepoints"},
    )
    snapshot_interval: int = _option(
        100, "epochs between two snapshots of the state, which replace the epochs before them; 0: no snapshots"
    )
    snapshot_timeout_s: float = _option(600.0, "a snapshot that takes longer is aborted; the next one tries again")
    retained_snapshots: int = _option(2, "snapshots kept; an older one serves when a newer one is damaged")
    checkpoint_compression: str = _option("none", "compression of the checkpoints: none, lz4 or zstd")
    restore_from: str = _option(
        "",
        "savepoint, or checkpoint directory of a stopped job, whose state a job with an empty checkpoint_dir restores; "
        "a path or a URL",
    )
    allow_non_restored_state: bool = _option(
        False, "drop stored state that belongs to no operator or state of the job any more, instead of failing"
    )
    standby_replicas: int = _option(
        0,
        "processes on the driver's host that keep the committed state of all operators in the job's backend "
        "and answer committed queries for key groups whose task manager is lost",
    )
    job_manager_host: str = _option(
        "",
        "address at which executors reach the job manager, in the process that makes the job; empty: loopback on a "
        "local master, else spark.driver.host, with Spark Connect the address from which this host reaches the server",
    )
    job_manager_bind: str = _option("", "address the job manager listens on; empty: that at which executors reach it")
    job_manager_ports: str = _option("0", "ports of the job manager, tried in order; 0: any free port")
    proxy_enabled: bool = _option(True, "run a client proxy in every task manager")
    proxy_bind: str = _option("", "address the proxies listen on; empty: loopback on a local master, else the host's")
    proxy_ports: str = _option("9069,9100-9299", "ports of the proxies, tried in order: a list of ports and ranges")
    proxy_network_threads: int = _option(0, "threads for network work per proxy; 0: the number of slots")
    proxy_query_threads: int = _option(
        0,
        "threads per proxy that look up locations and read state of its own process; 0: the number of slots",
    )
    server_bind: str = _option("", "address the state servers listen on; empty: as for the proxies")
    server_ports: str = _option("9067,9300-9499", "ports of the state servers, tried in order")
    server_network_threads: int = _option(0, "threads for network work per state server; 0: the number of slots")
    server_query_threads: int = _option(0, "threads for state access per state server; 0: the number of slots")
    max_connections: int = _option(
        1024, "client connections per server or proxy; at the limit, a new connection replaces an idle one"
    )
    max_connections_per_address: int = _option(
        0, "the same from one address; 0: half of max_connections, and no such limit for loopback"
    )
    max_frame_bytes: int = _option(
        16 * 1024 * 1024, "largest frame accepted or sent on the query port; 4096 to 268435455"
    )
    max_queued_requests: int = _option(10_000, "requests a server or proxy queues before it answers 'overloaded'")
    max_requests_per_connection: int = _option(
        1000, "unanswered requests of one connection, at which a server or proxy stops reading from it"
    )
    max_buffered_bytes: int = _option(
        64 * 1024 * 1024,
        "memory of a server or proxy for requests that have not arrived whole and answers that are not read yet, and "
        "half as much for requests in flight; beyond it, connections that hold much of it are closed",
    )
    query_quota: float = _option(
        0.1,
        "share of a processor that all queries together may use of a task manager while it processes an epoch, and "
        "0.1 s longer; addresses that want more share it equally, and are read more slowly; 0: no quota",
    )
    statistics: bool = _option(
        True, "count connections, requests, failures and durations: for Job.statistics() and for metrics"
    )
    tracing: bool = _option(
        False, "proxies and state servers make OpenTelemetry spans for the gets of clients with tracing"
    )
    metrics_ports: str = _option(
        "", "ports of the driver for Prometheus metrics of all task managers, tried in order; empty: none"
    )
    task_manager_metrics_ports: str = _option(
        "",
        "ports of each task manager and of each standby of the job for Prometheus metrics of its own, tried in order; "
        "empty: none",
    )
    metrics_bind: str = _option("127.0.0.1", "address that the metrics endpoints listen on")
    auth_token: str = field(default="", repr=False, metadata={"doc": "token that clients must present; empty: none"})
    auth_token_file: str = _option(
        "", "file that holds the token instead, in one line; the driver reads it when the job starts"
    )
    access_file: str = _option(
        "",
        "file, on every host, with further tokens and certificates and what they may do; it may change while the job "
        "runs; empty: every client may do everything",
    )
    audit_log: bool = _option(
        False, "log who asked for what at the query ports and what was refused, to the logger qstate.audit"
    )
    allow_open_query_port: bool = _option(False, "permit a query port beyond loopback without a token")
    allow_token_without_tls: bool = _option(
        False, "permit a token beyond loopback without TLS, where others on the network can read it"
    )
    tls_certificate_file: str = _option(
        "",
        "file in PEM form, on every host, with the certificate of its servers and proxies and those that lead to its "
        "authority: the query port takes TLS connections only; empty: no TLS",
    )
    tls_key_file: str = _option("", "file with the certificate's key, in PEM form; empty: it is in the same file")
    tls_client_ca_file: str = _option(
        "", "file with the authorities of client certificates, in PEM form; empty: clients need no certificate"
    )
    tls_require_client_certificate: bool = _option(
        True, "with tls_client_ca_file, refuse clients without a certificate"
    )
    tls_ca_file: str = _option(
        "", "file with the authorities by which proxies verify state servers, in PEM form; empty: the system's"
    )
    tls_server_name: str = _option(
        "",
        "name that proxies look for in the certificates of state servers; empty: the address that they connect to",
    )
    lease_s: float = _option(10.0, "a task manager ends itself after so long without contact to its job manager")
    start_timeout_s: float = _option(60.0, "how long a task waits for its task manager to start and restore")
    replay_buffer_bytes: int = _option(
        256 * 1024 * 1024, "input of one epoch that a task keeps to survive the loss of its task manager; 0: none"
    )
    exactly_once: bool = _option(
        True,
        "roll back the writes of a failed attempt of an epoch before the epoch is processed again; "
        "False: at least once, rows of a failed attempt may count twice",
    )
    allow_skipped_epochs: bool = _option(
        False, "continue when the rows of an epoch never reached the state, instead of stopping the query"
    )
    allow_changed_input: bool = _option(
        False,
        "when Spark repeats a sealed epoch with other rows, drop the rows and continue with the stored results, "
        "instead of stopping the query",
    )
    ttl_sweep_entries: int = _option(
        1000,
        "entries of states with a time-to-live that a subtask visits at the end of an epoch, to remove expired ones, "
        "besides two for each value written; 0: none, an expired entry stays stored until the function reads it",
    )
    element_warning_s: float = _option(
        60.0,
        "the task manager logs a row, a batch or an open() that takes longer, with the Python stack, and again "
        "after twice as long; 0: never",
    )
    element_timeout_s: float = _option(
        0.0,
        "a row or a batch that takes longer fails its epoch and ends its task manager, because user code that hangs "
        "cannot be stopped otherwise; an open() may take start_timeout_s, if that is longer; 0: no limit",
    )
    switch_interval_s: float = _option(0.0005, "the interpreter's switch interval in task managers")
    log_dir: str = _option(
        "",
        "directory for the task managers' logs, on each host; empty: the user's own directory qstate-logs-... in the "
        "host's temporary directory",
    )
    log_format: str = _option("text", "form of the task managers' logs: text, or json for one JSON object a line")

    def __post_init__(self) -> None:
        for name in _FIELDS:
            object.__setattr__(self, name, _checked(name, name, getattr(self, name)))
        check_max_parallelism(self.max_parallelism)
        if not MIN_MAX_FRAME <= self.max_frame_bytes <= MAX_FRAME_LIMIT:
            raise ConfigError(
                f"max_frame_bytes must be {MIN_MAX_FRAME} to {MAX_FRAME_LIMIT}, got {self.max_frame_bytes}"
            )
        for name in _ABOVE_ZERO:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above zero, got {getattr(self, name)}")
        for name in _NUMBERS:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.checkpoint_compression not in COMPRESSIONS:
            raise ConfigError(
                f"checkpoint_compression must be one of {', '.join(COMPRESSIONS)}, got {self.checkpoint_compression!r}"
            )
        if self.log_format not in FORMS:
            raise ConfigError(f"log_format must be one of {', '.join(FORMS)}, got {self.log_format!r}")
        if self.parallelism > self.max_parallelism:
            raise ConfigError(f"parallelism {self.parallelism} exceeds max_parallelism {self.max_parallelism}")

    @classmethod
    def from_spark(cls, conf: Mapping[str, str], **settings: Any) -> JobConfig:
        """The config from Spark conf entries and Python settings; ignores keys other than `spark.qstate.*`.

        Raises `ConfigError`.
        """
        found: dict[str, Any] = {}
        options: dict[str, dict[str, Any]] = {name: {} for name in _MAPS}
        for key, text in conf.items():
            if not key.startswith(SPARK_PREFIX):
                continue
            name = key[len(SPARK_PREFIX) :]
            if name.startswith(BACKEND_OPTION_PREFIX):
                options["backend_options"][name[len(BACKEND_OPTION_PREFIX) :]] = text
            elif name.startswith(STORAGE_OPTION_PREFIX):
                options["checkpoint_storage_options"][name[len(STORAGE_OPTION_PREFIX) :]] = storage_option(text)
            else:
                found[_field_of(name, key)] = _checked(_field_of(name, key), key, text)
        _check_known(settings)
        for name, entries in options.items():
            entries.update(_checked(name, name, settings.pop(name, {})))
        return cls(**{**found, **settings, **options})

    def merged(self, **settings: Any) -> JobConfig:
        """The same config with some settings replaced. Raises `ConfigError`."""
        _check_known(settings)
        return replace(self, **settings)


_FIELDS = {entry.name: entry for entry in fields(JobConfig)}
#: Fields whose value may be a `Path`.
_PLACES = frozenset(name for name in _FIELDS if name == "restore_from" or name.endswith(("_dir", "_file")))
#: Fields whose value may be any form of `Ports`; the config has it as text.
_PORTS = frozenset(name for name in _FIELDS if name.endswith("_ports"))
_ABOVE_ZERO = [
    "snapshot_timeout_s",
    "retained_snapshots",
    "slots",
    "max_connections",
    "max_queued_requests",
    "max_buffered_bytes",
    "max_requests_per_connection",
    "lease_s",
    "start_timeout_s",
    "switch_interval_s",
]
_NUMBERS = [name for name, entry in _FIELDS.items() if type(entry.default) in (int, float)]


def option_table() -> list[tuple[str, str, Any, str]]:
    """(Python name, Spark conf key, default, meaning) of every option, for the reference page."""
    return [
        (name, SPARK_PREFIX + name.replace("_", "."), entry.default, str(entry.metadata["doc"]))
        for name, entry in _FIELDS.items()
        if name not in _MAPS
    ]


def storage_option(text: str) -> Any:
    """The value of a storage option from its text: the JSON value if the text is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _field_of(name: str, key: str) -> str:
    wanted = name.replace(".", "_")
    if wanted in _FIELDS and wanted not in _MAPS:
        return wanted
    raise ConfigError(_unknown_setting(key, [SPARK_PREFIX + entry.replace("_", ".") for entry in _FIELDS]))


def _check_known(settings: Mapping[str, Any]) -> None:
    unknown = settings.keys() - _FIELDS.keys()
    if unknown:
        raise ConfigError(_unknown_setting(min(unknown), list(_FIELDS)))


def _unknown_setting(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown setting {name!r}{hint} Valid are: {', '.join(sorted(valid))}"


def _checked(name: str, label: str, value: Any) -> Any:
    """The value of a field in its type; `label` is the name that the user wrote. Raises `ConfigError`."""
    entry = _FIELDS[name]
    shown = repr(value) if entry.repr else f"a value of type {type(value).__name__}"  # the value may be a secret
    if name in _MAPS:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{label} must be a map from names to values, got {shown}")
        return value
    if name in _PLACES and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name in _PORTS:
        return _ports(label, value, may_be_empty=entry.default == "")
    found = setting_value(type(entry.default), value)
    if found is None or (isinstance(found, float) and not math.isfinite(found)):
        example = f" such as {entry.default!r}" if isinstance(entry.default, str) and entry.default else ""
        finite = ", and finite" if isinstance(found, float) else ""
        raise ConfigError(f"{label} must be {WORDS[type(entry.default)]}{example}{finite}, got {shown}")
    return found


def _ports(label: str, value: Any, *, may_be_empty: bool) -> str:
    if may_be_empty and isinstance(value, str) and not value:
        return ""
    try:
        return ports_text(value)
    except ConfigError as exc:
        raise ConfigError(f"{label}: {exc}") from None
