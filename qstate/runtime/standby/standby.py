"""The standby: a process that serves the committed state of a checkpoint directory or savepoint, without the job.

Rules of this module: it wires the parts together (state server, client proxy, registry, operators) and decides when to
look at the directory. It starts no job, takes no lock on the directory and writes nothing into it. So it may run while
the job runs or after it, and several standbys may serve one directory.

When a look fails, the standby keeps serving the state that it has, which is of a committed epoch. It logs the failure
once, counts it, and looks again; until a look succeeds, clients can limit the age of answers with `max_staleness_s`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from secrets import token_bytes
from typing import Any, Protocol

from qstate.backends.catalog import check_backend
from qstate.checkpoint.log.chain import NO_EPOCH
from qstate.checkpoint.manifest import MANIFEST_FILE, JobManifest, read_final
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import JobHistory, StateSource
from qstate.checkpoint.sources.savepoint import Savepoint
from qstate.checkpoint.storage.locations import absolute, open_directory
from qstate.config import JobConfig
from qstate.descriptors import StateDescriptor
from qstate.errors import (
    CheckpointError,
    ClosedError,
    ConfigError,
    DamagedCheckpoint,
    QueryError,
    Restoring,
    UnknownState,
)
from qstate.host.line_limit import limited
from qstate.keys import KeyGroupRange
from qstate.runtime.control.auth_token import with_token
from qstate.runtime.control.job_statistics import ProcessStatistics, StandbyStatistics
from qstate.runtime.control.scratch_directory import ScratchDirectory
from qstate.runtime.control.statistics import counts_of, request_statistics
from qstate.runtime.routing.location import LocationOracle, LocationTable
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.metrics import MetricsServer
from qstate.runtime.serving.query_ports import check_exposure, endpoint_options, reachable
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from qstate.runtime.standby.served_operator import ServedOperator, ServingSettings
from qstate.setting_values import setting_value

__all__ = ["DEFAULT_INTERVAL_S", "ServedOracle", "Standby", "StandbyStatus", "serve_checkpoint"]

log = limited(logging.getLogger(__name__))

DEFAULT_INTERVAL_S = 0.5
DRAIN_TIMEOUT_S = 2.0
#: How long a running look may take to stop.
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """The status of a standby. `epochs` maps operator uids to served epochs; `job` is None before one is found.

    `looks` counts looks at the directory, `failures` the failed ones; `failure` is the reason of the last look's
    failure, None when it succeeded. `fills` counts how often an operator's whole state was read.
    """

    job: str | None
    epochs: Mapping[str, int]
    looks: int
    failures: int
    failure: str | None
    fills: int


class ServedOracle(LocationOracle, Protocol):
    """A location oracle that learns what a standby serves."""

    def serves(self, tables: Mapping[str, LocationTable]) -> None:
        """The standby serves these states now, by name, and no other. It may return before all callers know it."""

    def looked(self) -> None:
        """The first look has finished: what is not served yet, is not in the directory."""


class StandbyOracle:
    """The location oracle of a standby that serves a job alone."""

    def __init__(self, job: str) -> None:
        self._job = job
        #: Replaced as a whole, so that readers need no lock.
        self._tables: Mapping[str, LocationTable] = {}
        #: Whether a state may be missing because the first look has not finished.
        self._filling = True

    def serves(self, tables: Mapping[str, LocationTable]) -> None:
        self._tables = tables

    def looked(self) -> None:
        self._filling = False

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        filling, table = self._filling, self._tables.get(state)
        if table is not None:
            reply(table)
        else:
            reply(Restoring(job=self._job, state=state) if filling else UnknownState(job=self._job, state=state))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        filling, tables = self._filling, self._tables
        reply(Restoring(job=self._job) if filling else [table.state for _, table in sorted(tables.items())])


class Standby:
    """Serves the committed state of a checkpoint directory, and follows it; or a savepoint. `close` it, or use `with`.

    `config`: the standby uses the settings of proxies, state servers and backend, and reads the location with
    `checkpoint_storage_options`; it ignores the others. `interval_s` is the pause between two looks, in seconds.
    `oracle_of` makes the location oracle of the job that the directory names. `secret` is that of a job whose proxies
    ask this standby. Its statistics have `name` and `restarts`. Raises `ConfigError` for settings that cannot work.
    """

    def __init__(
        self,
        location: str | Path,
        config: JobConfig,
        *,
        host: str = "127.0.0.1",
        interval_s: float = DEFAULT_INTERVAL_S,
        descriptors: Iterable[StateDescriptor] = (),
        oracle_of: Callable[[str], ServedOracle] = StandbyOracle,
        secret: bytes | None = None,
        name: str = "standby",
        restarts: int = 0,
    ) -> None:
        self._name, self._restarts = name, restarts
        self._oracle_of = oracle_of
        self._root = open_directory(absolute(location), config.checkpoint_storage_options)
        config = self._config = with_token(config)
        self._interval_s = _interval(interval_s)
        self._descriptors = tuple(descriptors)
        check_backend(config.backend, config.backend_options)
        check_exposure(config, host)
        self._registry = StateRegistry()
        self._server_statistics = request_statistics(config.statistics)
        self._proxy_statistics = request_statistics(config.statistics)
        secret = secret or token_bytes(32)  # only the server and the proxy of this process have it
        server_options = endpoint_options(config, "server", host, secret)
        self._server = StateServer(self._registry, server_options, self._server_statistics)
        proxy_options = endpoint_options(config, "proxy", host, secret)
        self._proxy = ClientProxy(proxy_options, self._proxy_statistics, local=self._server)
        self._metrics: MetricsServer | None = None
        self._oracle: ServedOracle | None = None
        self._source: StateSource | None = None
        self._settings: ServingSettings | None = None
        #: By operator, its history (`JobManifest.history_of`) and its logs.
        self._followed: dict[str, tuple[str | None, FollowedOperator]] = {}
        self._served: dict[str, ServedOperator] = {}
        self._looks = self._failures = 0
        self._failure: str | None = None
        self._looked = threading.Event()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._scratch_directory: ScratchDirectory | None = None
        self._closing = ExitStack()  # runs from the last to the first
        self._closing.callback(self._free_state)
        self._closing.callback(self._server.shutdown, DRAIN_TIMEOUT_S)
        self._closing.callback(self._proxy.shutdown, DRAIN_TIMEOUT_S)

    def start(self) -> None:
        """Listen, and begin to look at the directory. Raises `ConfigError` when no port is free: close it then."""
        self._server.start()
        self._proxy.expect_jobs(True)
        self._proxy.start()
        if self._config.metrics_ports:
            self._metrics = MetricsServer(
                lambda: "" if self._source is None else self._source.job,
                lambda: [self.statistics()],
                bind=self._config.metrics_bind,
                ports=self._config.metrics_ports,
            )
            self._closing.callback(self._metrics.close)
        self._scratch_directory = ScratchDirectory()
        self._settings = ServingSettings(
            self._config,
            self._scratch_directory.path,
            reachable(self._server.address),
            self._descriptors,
            self._stop.is_set,
        )
        looking = threading.Thread(target=self._run, name="qstate-standby", daemon=True)
        self._closing.callback(looking.join, STOP_TIMEOUT_S)
        self._closing.callback(self.look_soon)
        self._closing.callback(self._stop.set)
        looking.start()

    def look_soon(self) -> None:
        """Look at the directory now, instead of at the end of the interval. Any thread may call it."""
        self._wake.set()

    def wait_for_first_look(self) -> None:
        """Wait until the first look has finished: the committed state is served, or the look failed."""
        self._looked.wait()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of the client proxy."""
        return reachable(self._proxy.address)

    @property
    def server_address(self) -> tuple[str, int]:
        """The host and port of the state server."""
        return reachable(self._server.address)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The host and port of the Prometheus metrics; None without `metrics_ports`, and before `start`."""
        return None if self._metrics is None else self._metrics.address

    def status(self) -> StandbyStatus:
        """The current status. Any thread may call it."""
        served = dict(self._served)
        return StandbyStatus(
            job=None if self._source is None else self._source.job,
            epochs={uid: operator.epoch for uid, operator in sorted(served.items())},
            looks=self._looks,
            failures=self._failures,
            failure=self._failure,
            fills=sum(operator.fills for operator in served.values()),
        )

    def statistics(self) -> ProcessStatistics:
        """The counts of the state server and the client proxy, and what is served. Any thread may call it."""
        status = self.status()
        return ProcessStatistics(
            self._name,
            counts_of(self._server_statistics),
            counts_of(self._proxy_statistics),
            restarts=self._restarts,
            standby=StandbyStatistics(tuple(status.epochs.items()), status.looks, status.failures),
        )

    def close(self) -> None:
        """Stop serving; requests in flight may finish. Idempotent."""
        self._closing.pop_all().close()

    def __enter__(self) -> Standby:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- looking ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            started_at = time.monotonic()
            self._note(self._look())
            self._looked.set()
            if isinstance(self._source, Savepoint) and self._failure is None:
                return  # a savepoint never changes
            # When looks take long, at most half of the time is spent on them.
            if not self._stop.wait(time.monotonic() - started_at):
                self._wake.wait(self._interval_s)

    def _look(self) -> str | None:
        """Serve newly committed epochs. Returns the reason of a failure, None for success."""
        try:
            if self._source is None:
                try:
                    self._source = self._find_source()
                finally:
                    self._proxy.expect_jobs(False)
            if isinstance(self._source, Savepoint):
                return self._serve_savepoint(self._source)
            return None if self._source is None else self._follow_job(self._source.job)
        except ClosedError:
            return None
        except (CheckpointError, OSError) as exc:
            return str(exc)
        except Exception as exc:
            log.exception("a look at %s failed", self._root.path)
            return f"{type(exc).__name__}: {exc}"
        finally:
            if self._oracle is not None:
                self._oracle.looked()

    def _find_source(self) -> StateSource | None:
        source: StateSource | None = Savepoint.read(self._root)
        if source is None:
            manifest = JobManifest.read(self._root)
            if manifest is None:
                if not self._looks:
                    log.info("waiting for a checkpoint in %s", self._root.path)
                return None
            source = JobHistory(self._root, manifest)
        log.info("serving job %s from %s", source.job, source.location)
        self._oracle = self._oracle_of(source.job)
        self._proxy.set_location_oracle(source.job, self._oracle)
        return source

    def _follow_job(self, job: str) -> str | None:
        started_at = time.monotonic()
        manifest = JobManifest.read(self._root)
        if manifest is None:
            raise CheckpointError(f"{self._root.path} has no {MANIFEST_FILE} any more")
        if manifest.job != job:
            raise CheckpointError(
                f"{self._root.path} belongs to job {manifest.job!r} now; restart the standby to serve it"
            )
        committed = dict(read_final(self._root))
        looked: dict[str, FollowedOperator] = {}
        wrong: list[str] = []
        for uid, query in manifest.operators.items():
            try:
                looked[uid] = self._looked_at(uid, manifest)
                # Spark commits an epoch for all operators of a query together: a proof by one holds for the others.
                committed[query] = max(committed.get(query, NO_EPOCH), looked[uid].proved)
            except CheckpointError as exc:
                wrong.append(f"operator {uid!r}: {exc}")
        for uid, history in looked.items():
            try:
                self._follow(uid, history, manifest, committed[manifest.operators[uid]])
                self._served[uid].complete_at = started_at
            except _Incomplete as exc:
                log.debug("operator %s: %s", uid, exc)
            except CheckpointError as exc:
                wrong.append(f"operator {uid!r}: {exc}")
        return wrong[0] if wrong else None

    def _looked_at(self, uid: str, manifest: JobManifest) -> FollowedOperator:
        history = manifest.history_of(uid)
        if uid not in self._followed:
            self._served[uid] = self._operator(uid, JobHistory(self._root, manifest))
            self._followed[uid] = history, FollowedOperator(self._root, uid)
        known, followed = self._followed[uid]
        if known != history:
            raise CheckpointError(
                "the directory now has another history of its state, because the job has begun again or gone back to a "
                "copy; restart the standby to serve that"
            )
        followed.look(manifest)
        return followed

    def _follow(self, uid: str, history: FollowedOperator, manifest: JobManifest, committed: int) -> None:
        """Advance one operator. Returns when everything committed is served, else raises."""
        served = self._served[uid]
        served.follow(history, manifest, committed, JobHistory(self._root, manifest))
        if history.damaged is not None:
            raise DamagedCheckpoint(
                f"{history.damaged} is damaged; epoch {served.epoch} is served until the job commits another epoch, or "
                "the file is brought back from a copy"
            )
        if not history.whole and committed > served.epoch:
            if manifest.restored_from is not None:
                raise _Incomplete("not every subtask has begun since the job was restored")
            raise DamagedCheckpoint(
                f"epoch logs of some of its key groups are missing, although epoch {committed} was committed; bring "
                f"the directory {self._root.path} back from a copy"
            )
        if history.sealed > served.epoch:
            raise _Incomplete(f"epoch {history.sealed} is sealed, and not known to be committed")

    def _serve_savepoint(self, savepoint: Savepoint) -> str | None:
        """Serve a savepoint. Its age counts as staleness: it lacks all epochs committed since."""
        age_s = max(0.0, time.time() - datetime.fromisoformat(savepoint.created).timestamp())
        made_at = time.monotonic() - age_s
        for uid, stored in savepoint.operators().items():
            operator = self._served.setdefault(uid, self._operator(uid, savepoint))
            if operator.epoch == NO_EPOCH:
                operator.complete_at = made_at
                operator.fill(savepoint, stored.states, stored.epoch, [KeyGroupRange(0, savepoint.max_parallelism)])
        return None

    def _operator(self, uid: str, source: StateSource) -> ServedOperator:
        assert self._settings is not None  # `start` sets it before the thread starts
        return ServedOperator(uid, source, self._settings, self._registry, self._publish)

    def _publish(self) -> None:
        """Update the oracle. When two operators have a name, one is from an older program: the newer state wins."""
        assert self._oracle is not None
        tables: dict[str, LocationTable] = {}
        for operator in sorted(self._served.values(), key=lambda operator: operator.written_at):
            tables.update(operator.tables)
        self._oracle.serves(tables)

    def _note(self, failure: str | None) -> None:
        self._looks += 1
        if failure is not None:
            self._failures += 1
        if failure != self._failure:
            if failure is not None:
                log.warning("%s; the standby keeps serving the state that it has", failure)
            else:
                log.info("%s can be read again", self._root.path)
        self._failure = failure

    # -- parts ------------------------------------------------------------------------------------------------

    def _free_state(self) -> None:
        for operator in self._served.values():
            operator.close()
        if self._scratch_directory is not None:
            self._scratch_directory.remove()


class _Incomplete(Exception):
    """A committed epoch may not be served yet. Not an error: the next looks find out."""


def _interval(value: Any) -> float:
    seconds: float | None = setting_value(float, value)
    if seconds is None or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"the interval between two looks must be seconds above zero, got {value!r}")
    return seconds


def serve_checkpoint(
    location: str | Path,
    *,
    host: str = "127.0.0.1",
    interval_s: float = DEFAULT_INTERVAL_S,
    descriptors: Iterable[StateDescriptor] = (),
    **settings: Any,
) -> Standby:
    """Serve the committed state of a checkpoint directory or savepoint from this process, until it is closed.

    When this returns, the committed state is served. If the directory is empty or does not exist yet, the standby waits
    for it. A look every `interval_s` seconds finds epochs that are committed later. `descriptors` are those of
    aggregating states, because they have the function that computes the results. `settings` are fields of
    `qstate.config.JobConfig` for ports, the token and the backend, such as `proxy_ports="9069"` and
    `backend="rocksdb"`.

    Raises `ConfigError` for settings that cannot work, and when no port is free.
    """
    standby = Standby(
        location,
        JobConfig.from_spark({}, **settings),
        host=host,
        interval_s=interval_s,
        descriptors=descriptors,
    )
    try:
        standby.start()
        standby.wait_for_first_look()
    except BaseException:
        standby.close()
        raise
    return standby
