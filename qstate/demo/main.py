"""The demo from beginning to end: prepare, run, watch, compare.

Rules of this module: the order of things, and that everything is put away again whatever happens. The exit code is 0
only when every key has the value that the batch computation says, and every output row was written once.
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from qstate.backends.catalog import check_backend
from qstate.client import QueryableStateClient
from qstate.demo.compare import report
from qstate.demo.dashboard import Dashboard, Picture, Stopwatch, StreamLine, open_dashboard
from qstate.demo.data import DataSet, prepare
from qstate.demo.feeder import Feeder
from qstate.demo.interrupts import Interrupts
from qstate.demo.options import DemoOptions
from qstate.demo.probe import Probe
from qstate.demo.session import open_session
from qstate.demo.streams import JOB, Streams, start_streams
from qstate.errors import ConfigError, JobError
from qstate.gateway.server import GatewayServer
from qstate.gateway.settings import GatewaySettings
from qstate.host.ports import parse_ports
from qstate.host.private_files import is_own_directory, make_directories
from qstate.spark import Job

__all__ = ["run"]

#: How long a slow machine may take for steps without visible progress: a task manager's start, an answer to a query.
#: Steps with visible progress have no limit.
PATIENCE_S = 600.0
PROXY_LOOK_S = 0.2
#: How long the gateway may take to end its streams.
GATEWAY_STOP_TIMEOUT_S = 20.0


def run(options: DemoOptions) -> int:
    """Run the demo; the result is the exit code. Raises the errors of qstate."""
    # Checked now, so that the error does not come after half a minute of preparations.
    check_backend(options.backend, {})
    parse_ports(options.ports)
    parse_ports(options.page_ports)
    logging.basicConfig(level=logging.WARNING if options.verbose else logging.ERROR)
    with _clean_up_on_sigterm(), _work_directory(options) as directory, ExitStack() as cleanup:
        data = _prepare(directory, options.days)
        spark = open_session(directory / "spark", cores=options.parallelism, verbose=options.verbose)
        cleanup.callback(spark.stop)
        try:
            return _run(options, spark, data, directory)
        except PySparkException as exc:
            raise JobError(f"Spark: {str(exc).strip().partition(chr(10))[0]}") from exc


def _run(options: DemoOptions, spark: SparkSession, data: DataSet, directory: Path) -> int:
    with ExitStack() as cleanup:
        interrupts = cleanup.enter_context(Interrupts())
        job = cleanup.enter_context(
            Job(
                spark,
                JOB,
                backend=options.backend,
                parallelism=options.parallelism,
                proxy_ports=options.ports,
                metrics_ports="0" if options.serve else "",
                checkpoint_dir=str(directory / "epochs"),
                start_timeout_s=PATIENCE_S,
            )
        )
        feeder = Feeder(data, directory / "incoming", options.days_per_s) if options.days_per_s else None
        watched = data if feeder is None else replace(data, directory=feeder.directory)
        streams = start_streams(spark, job, watched, directory, complete=feeder is None)
        cleanup.callback(streams.stop)
        if feeder is not None:
            cleanup.callback(feeder.stop)
            feeder.start()
        began = time.monotonic()
        client = cleanup.enter_context(_connect(job, streams, interrupts))
        print(f"state is served by the client proxy at {':'.join(map(str, job.proxy_address))}", flush=True)
        if options.serve:
            url = cleanup.enter_context(_live_page(job, options.page_ports))
            print(f"watch it live in a browser: {url}#/{JOB}", flush=True)
        _watch(streams, Probe(client, JOB), open_dashboard(plain=options.plain), interrupts)
        rows = data.flights + 2 * data.readings
        print(f"replayed {rows:,} rows in {time.monotonic() - began:.1f} s; now in batch, with Spark SQL", flush=True)
        interrupts.check()
        right = report(spark, data, streams, client)
        if options.serve:
            _serve(":".join(map(str, job.proxy_address)), interrupts)
        return 0 if right else 1


@contextmanager
def _work_directory(options: DemoOptions) -> Iterator[Path]:
    if options.work_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="qstate-demo-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    yield _kept_directory(options.work_dir).resolve()


def _kept_directory(path: Path) -> Path:
    """The directory of that name, new or empty. Raises `ConfigError` if it has files, or if others can change it."""
    try:
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"--work-dir {path} is not empty: name a new directory")
        make_directories(path)
    except OSError as exc:
        raise ConfigError(f"--work-dir {path} cannot be used: {exc.strerror}; name a new directory") from exc
    if not is_own_directory(path):
        raise ConfigError(
            f"other users can change --work-dir {path}, and so what the demo's Spark does: name a new directory"
        )
    return path


def _prepare(directory: Path, days: int | None) -> DataSet:
    data = prepare(directory / "data", first_days=days)
    print(
        f"{data.flights:,} flights of {data.aircraft:,} aircraft "
        f"({data.without_aircraft:,} flights name no aircraft, {data.never_departed:,} never departed)"
    )
    print(
        f"{data.readings:,} weather readings of {len(data.airports)} airports "
        f"({data.without_temperature:,} without a temperature)",
        flush=True,
    )
    return data


def _connect(job: Job, streams: Streams, interrupts: Interrupts) -> QueryableStateClient:
    """A client of the job's first proxy, once the proxy answers. Raises the error of a query that fails before."""
    while True:
        interrupts.check()
        streams.check()
        with suppress(TimeoutError):
            return QueryableStateClient(*job.manager.wait_for_proxy(PROXY_LOOK_S), timeout_s=PATIENCE_S)


@contextmanager
def _live_page(job: Job, ports: str) -> Iterator[str]:
    """The URL of a gateway's live page of the job, on loopback. Raises `ConfigError` when no port is free."""
    figures = [] if job.metrics_address is None else [":".join(map(str, job.metrics_address))]
    server = GatewayServer(GatewaySettings([job.proxy_address], job_metrics=figures, ports=ports))
    thread = threading.Thread(target=server.run, name="qstate-demo-page", daemon=True)
    thread.start()
    try:
        yield "http://{}:{}/".format(*server.address)
    finally:
        server.should_exit = True
        thread.join(GATEWAY_STOP_TIMEOUT_S)


def _watch(streams: Streams, probe: Probe, dashboard: Dashboard, interrupts: Interrupts) -> None:
    began = time.monotonic()
    watches = {name: Stopwatch() for name in streams.all()}
    try:
        finished = False
        while not finished:
            streams.check()
            finished = streams.finished()
            lines = [
                StreamLine(
                    name, progress.rows, progress.total, progress.epochs, watches[name].rows_per_s(progress.rows)
                )
                for name, progress in streams.all().items()
            ]
            day = streams.maxima.day
            readings = probe.look(day)
            elapsed_s = time.monotonic() - began
            dashboard.show(Picture(elapsed_s, day, lines, readings, probe.keys, probe.mean_ms))
            if not finished:
                interrupts.pause(dashboard.interval_s)
    finally:
        dashboard.close()


def _serve(proxy: str, interrupts: Interrupts) -> None:
    print(f"serving until Ctrl-C; from another shell: qstate get {JOB} lastFlight N725MQ --proxy {proxy}", flush=True)
    with suppress(KeyboardInterrupt):
        while True:
            interrupts.pause(60.0)


@contextmanager
def _clean_up_on_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
