"""The Python blocks of every page run, in their order; `tests.project.documentation` has the convention."""

from __future__ import annotations

import io
import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
import pytest
import uvicorn

from qstate.client import QueryableStateClient
from qstate.errors import JobError, QueryError
from qstate.runtime.serving.access.access_file import AccessFile
from qstate.spark import Job
from tests.project.documentation import Block, Page, pages, run_program
from tests.project.served_job import serve, serve_history
from tests.spark.streams import LOCAL, FileStream, start_spark, until

README = Page("README.md")
QUERY = Page("docs/how-to/query-state.md")
COOKBOOK = Page("docs/how-to/cookbook.md")
FOLLOW = Page("docs/how-to/follow-changes.md")
CHOOSE = Page("docs/how-to/choose-a-backend.md")
LATEST_ROW = Page("docs/how-to/latest-row.md")
EVENT_TIME = Page("docs/how-to/event-time.md")
TIMERS = Page("docs/how-to/timers.md")
SIDE_OUTPUTS = Page("docs/how-to/side-outputs.md")
DATAFRAME = Page("docs/how-to/state-as-dataframe.md")
WHOLE_BATCHES = Page("docs/how-to/whole-batches.md")
CONNECT = Page("docs/how-to/connect-streams.md")
BROADCAST = Page("docs/how-to/broadcast.md")
NOTEBOOKS = Page("docs/how-to/notebooks.md")
FASTAPI = Page("docs/how-to/fastapi.md")
EMBED = Page("docs/how-to/embed-a-state-server.md")
SECURE = Page("docs/how-to/secure.md")
AVAILABLE = Page("docs/how-to/high-availability.md")
#: These need a session, a stream or a running job, or print what their page shows; the rest needs nothing.
ACTED_OUT = {
    README,
    QUERY,
    COOKBOOK,
    FOLLOW,
    DATAFRAME,
    CHOOSE,
    LATEST_ROW,
    EVENT_TIME,
    TIMERS,
    CONNECT,
    BROADCAST,
    SIDE_OUTPUTS,
    WHOLE_BATCHES,
    NOTEBOOKS,
    FASTAPI,
    EMBED,
    SECURE,
    AVAILABLE,
}
ALONE = [page for page in pages() if page.programs() and page not in ACTED_OUT]
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def spark() -> Any:
    return start_spark(LOCAL)


@pytest.mark.parametrize("page", ALONE, ids=lambda page: str(page.name))
def test_pages_that_need_nothing(page: Page) -> None:
    namespace = _namespace()
    for block in page.programs():
        run_program(page, block, namespace)


def test_embed_a_state_server_prints_what_its_page_shows() -> None:
    namespace = _namespace()
    printed = "".join(_printed(EMBED, block, namespace) for block in EMBED.programs())
    assert [printed] == [block.text for block in EMBED.blocks if block.language == "text"]


def test_secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    certificates = next(block for block in SECURE.blocks if block.language == "bash")
    subprocess.run(["bash", "-e", "-c", certificates.text], check=True, capture_output=True, timeout=TIMEOUT_S)
    (rules,) = (block for block in SECURE.blocks if block.language == "toml")
    Path("rules.toml").write_text(rules.text)
    assert {principal.name for principal in AccessFile("rules.toml").tokens.values()} == {"auditor"}
    namespace = _namespace()
    printed = "".join(_printed(SECURE, block, namespace) for block in SECURE.programs())
    logging.getLogger("qstate.audit").handlers.clear()
    assert printed.startswith("[]\n[]\nthe server's rules do not permit this")
    assert printed.endswith("\n[('anyone', 'Describe', 1)]\n")


def test_query_state(tmp_path: Path) -> None:
    with serve(tmp_path, job="alerts", committed=True) as proxy:
        namespace = _namespace()
        printed = [_printed(QUERY, block, namespace, proxy) for block in QUERY.programs()]
    assert printed == [
        "71.06 as of epoch 0\n",
        str(["msgpack"] * 6) + "\n",
        "71.06 None 2\n",
        "72.06\n",
        "{'JFK': 71.06}\n",
        "(('LAX', 2),)\n(('LAX', 2),) LAX\n(('SFO', 1),) None\n[3, -1]\n3 2\n",
        "JFK 2013-07-18 100.04\nJFK None 71.06\n1 begin with J\n['JFK']\n",
        "[71.06, None, None]\n",
        "[71.06, None, None]\n",
        "True 71.06\n",
        "71.06\n" * 3 + "CacheStatistics(hits=0, misses=3, entries=0, bytes=0)\n",
        "71.06\n",
        "71.06\n",
        "71.06\n",
    ]


def test_cookbook(tmp_path: Path) -> None:
    namespace = _namespace()
    for block in COOKBOOK.programs():
        run_program(COOKBOOK, block, namespace)
    features: Any = namespace["Features"]
    features_of: Any = namespace["features_of"]
    contents = {"features": {"ada": {"orders": 2, "spent": 30.0}}}
    with (
        serve(tmp_path, job="features", contents=contents) as proxy,
        QueryableStateClient(*proxy) as client,
    ):
        assert features_of(client, ["ada", "bob"]) == {"ada": features(2, 30.0), "bob": None}


def test_follow_changes(tmp_path: Path) -> None:
    with serve_history(tmp_path, job="alerts") as (proxy, history):
        namespace = _namespace()
        printed = [_printed(FOLLOW, block, namespace, proxy) for block in FOLLOW.programs()]
        assert history.feeds[0].final == 2
    assert printed == [
        "0 put JFK 71.06\n1 put JFK 72.0\n2 put JFK 73.0\n",
        "0 ['JFK']\n1 ['JFK']\n",
        "2 LGA 80.0\n",
        "{'JFK': 71.06}\n",  # of the backend: the history is in the log alone
    ]


@pytest.mark.spark
def test_choose_a_backend(spark: Any) -> None:
    namespace = _namespace(spark=spark)
    for block in CHOOSE.programs():
        run_program(CHOOSE, block, namespace)
    job = namespace["job"]
    assert isinstance(job, Job)
    job.stop()
    assert job.config.backend_options == {"flush_interval_s": 0.1}


@pytest.mark.spark
def test_latest_row(spark: Any, tmp_path: Path) -> None:
    assert _acted_out(LATEST_ROW, spark, tmp_path, [[60.0, 95.0]]) == ["", "95.0\n", ""]


@pytest.mark.spark
def test_state_as_dataframe(spark: Any, tmp_path: Path) -> None:
    printed = _acted_out(DATAFRAME, spark, tmp_path, [[60.0, 95.0]])
    assert printed == [
        "",
        "{'key': 'JFK', 'namespace': None, 'value': 95.0, 'epoch': 0}\n",
        "[Row(city='New York', value=95.0)]\n",
        "[Row(key='JFK', value=95.0)]\n",
        "[Row(epoch=0, change_type='put', key='JFK', value=95.0)]\n",
        "[Row(epoch=0, change_type='put', key='JFK', value=95.0)]\n",
        "",
        "[Row(key='JFK', namespace=None, value=95.0, epoch=0)]\n",
    ]


@pytest.mark.spark
def test_high_availability(spark: Any, tmp_path: Path) -> None:
    printed = _acted_out(AVAILABLE, spark, tmp_path, [[60.0, 95.0]])
    assert printed == ["", "95.0\n", "95.0\n", "standby 0 ['latest'] 0\n", ""]


@pytest.mark.spark
def test_event_time(spark: Any, tmp_path: Path) -> None:
    highest: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        namespace["query"].processAllAvailable()
        highest.extend(spark.sql("SELECT hour(window.start), highest FROM hourly ORDER BY 1").collect())

    batches = [[60.0, 95.0], [61.0, 62.0, 63.0, 70.0], [0.0]]
    assert _acted_out(EVENT_TIME, spark, tmp_path, batches, look) == ["", "", "61.0\n", ""]
    assert [tuple(row) for row in highest] == [(0, -34.0), (1, 35.0)]  # the watermark is 2:50


@pytest.mark.spark
def test_timers(spark: Any, tmp_path: Path) -> None:
    found: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        until(lambda: spark.table("maxima").count() == 2, "the hours before the watermark, 2:50, are reported")
        until(lambda: spark.table("silent").count() == 1, "the sensor is silent")
        found.extend(spark.table("maxima").selectExpr("hour(hour)", "highest").orderBy("hour").collect())

    assert _acted_out(TIMERS, spark, tmp_path, [[60.0, 71.0, 64.0, 66.0]], look) == ["", "", ""]
    assert [tuple(row) for row in found] == [(0, 60.0), (1, 71.0)]


@pytest.mark.spark
def test_side_outputs(spark: Any, tmp_path: Path) -> None:
    found: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        namespace["query"].processAllAvailable()
        for table in ("on_time", "late"):
            found.append(spark.table(table).count())
            spark.sql(f"DROP TABLE {table}")

    batches = [[60.0, 71.0, 64.0, 66.0], [59.0]]
    assert _acted_out(SIDE_OUTPUTS, spark, tmp_path, batches, look) == ["", "", ""]
    assert found == [4, 1]  # the watermark is 2:50


@pytest.mark.spark
def test_whole_batches(spark: Any, tmp_path: Path) -> None:
    alerts: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        alerts.extend(spark.sql("SELECT * FROM alerts").collect())
        until(lambda: spark.table("silences").where("last = 86.0").count() == 1, "the sensor is silent")

    printed = _acted_out(WHOLE_BATCHES, spark, tmp_path, [[60.0, 20.0, 41.0, 42.0], [85.0, 86.0]], look)
    assert printed == ["", "86.0\n", "[Row(sensor='JFK', longest=2), Row(sensor='JFK', longest=4)]\n", "", ""]
    assert [tuple(row) for row in alerts] == [("JFK", 20.0, 41.0), ("JFK", 42.0, 85.0)]


@pytest.mark.spark
def test_connect_streams(spark: Any, tmp_path: Path) -> None:
    limits = FileStream(spark, tmp_path / "limits")
    limits.add(_readings([70.0]).select(["sensor", "time", "temperature"]).rename_columns(["device", "time", "limit"]))
    found: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        namespace["query"].processAllAvailable()
        found.extend(map(tuple, spark.table("alerts").collect()))

    given = {"limits": limits.read()}
    assert _acted_out(CONNECT, spark, tmp_path, [[60.0, 71.0]], look, **given) == ["", ""]
    assert found == [("JFK", 71.0, 70.0)]


@pytest.mark.spark
def test_broadcast(spark: Any, tmp_path: Path) -> None:
    rules = FileStream(spark, tmp_path / "rules")
    rules.add(pa.table({"name": ["hot", "dry"], "limit": [70.0, 90.0]}))
    rules.add(pa.table({"name": ["hot", "dry"], "limit": pa.array([80.0, None], pa.float64())}))
    found: list[Any] = []

    def look(namespace: dict[str, Any]) -> None:
        namespace["passed"].processAllAvailable()
        for table in ("alerts", "valid"):
            found.append(sorted(map(tuple, spark.table(table).collect())))
            spark.sql(f"DROP TABLE {table}")

    batches = [[60.0, 71.0], [95.0, 79.0]]
    printed = _acted_out(BROADCAST, spark, tmp_path, batches, look, rules=rules.read())
    assert printed == ["", "", "", "80.0\n", "", "", ""]
    assert found == [
        [("JFK", "hot", 71.0, 1), ("JFK", "hot", 95.0, 2)],
        [("JFK", temperature, 0) for temperature in (60.0, 71.0, 79.0, 95.0)],
    ]


@pytest.mark.spark
def test_notebooks(spark: Any, tmp_path: Path) -> None:
    assert _acted_out(NOTEBOOKS, spark, tmp_path, [[60.0, 95.0]]) == ["", "", "", "95.0\n", ""]


def _acted_out(
    page: Page,
    spark: Any,
    tmp_path: Path,
    batches: list[list[float]],
    before_the_last: Callable[[dict[str, Any]], None] = lambda namespace: None,
    **given: object,
) -> list[str]:
    """What the page's blocks print. `batches` are micro-batches of hourly readings, each from midnight on."""
    readings = FileStream(spark, tmp_path / "input")
    for temperatures in batches:
        readings.add(_readings(temperatures))
    namespace = _namespace(spark=spark, readings=readings.read(), **given)
    printed = []
    for block in page.programs():
        # Relative paths are Spark's working directory for the one and this process's for the other.
        text = block.text.replace('"checkpoints/', f'"{tmp_path}/progress/').replace('"state/', f'"{tmp_path}/state/')
        if block == page.programs()[-1]:
            before_the_last(namespace)
        printed.append(_printed(page, Block("python", None, text, block.line), namespace))
    return printed


def test_fastapi(tmp_path: Path) -> None:
    (block,) = FASTAPI.programs()
    with serve(tmp_path, job="alerts", committed=True) as proxy:
        namespace = _namespace()
        run_program(FASTAPI, block, namespace)
        namespace["PROXY"] = proxy
        with _running(namespace["app"]) as address:
            found = json.loads(_answer(f"{address}/sensors/JFK/temperature?min_epoch=0"))
            assert found == {"sensor": "JFK", "temperature": 71.06, "epoch": 0}
            for path, status in (("LGA/temperature", 404), ("JFK/temperature?min_epoch=7", 504)):
                with pytest.raises(HTTPError) as failure:
                    _answer(f"{address}/sensors/{path}")
                assert failure.value.code == status
                failure.value.close()


@contextmanager
def _running(app: Any) -> Iterator[str]:
    """A web application on a server of its own; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def _answer(url: str) -> bytes:
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        data: bytes = answer.read()
    return data


@pytest.mark.spark
def test_readme(spark: Any, tmp_path: Path) -> None:
    """The job runs until its queries are stopped, so it has a thread; meanwhile the client asks."""
    job_block, client_block, table_block = README.programs()
    # Relative paths are Spark's working directory for the one and this process's for the other.
    text = job_block.text.replace('"state/', f'"{tmp_path}/state/').replace('"checkpoints/', f'"{tmp_path}/progress/')
    assert text.count(str(tmp_path)) == 2
    job_block = Block("python", None, text, job_block.line)
    readings = FileStream(spark, tmp_path / "input")
    readings.add(_readings([60.0, 95.0]))
    namespace = _namespace(spark=spark, readings=readings.read())
    failures: list[BaseException] = []

    def run_job() -> None:
        try:
            run_program(README, job_block, namespace)
        except BaseException as exc:
            failures.append(exc)

    running = threading.Thread(target=run_job)
    running.start()
    try:
        _ask_until(client_block, namespace, running, says="95.0\n")
        _ask_until(table_block, namespace, running, says="[Row(city='New York', value=95.0)]\n")
    finally:
        for query in spark.streams.active:
            query.stop()
        running.join(TIMEOUT_S)
    assert not running.is_alive()
    assert failures == []


def _ask_until(block: Block, namespace: dict[str, object], running: threading.Thread, says: str) -> None:
    """Ask again and again: the proxy is up before the state is, and the state before the row is in it."""
    deadline = time.monotonic() + TIMEOUT_S
    answer = None
    while answer != says:
        assert running.is_alive(), "the job has ended"
        assert time.monotonic() < deadline, f"the client prints {answer!r}, not {says!r}"
        job = namespace.get("job")
        if isinstance(job, Job):
            try:
                answer = _printed(README, block, namespace, job.proxy_address)
            except (QueryError, JobError) as exc:  # the query has not been started, or its first micro-batch has not
                answer = str(exc)
        threading.Event().wait(0.1)


def _printed(page: Page, block: Block, namespace: dict[str, object], proxy: tuple[str, int] | None = None) -> str:
    with redirect_stdout(io.StringIO()) as output:
        run_program(page, block, namespace, proxy)
    return output.getvalue()


def _namespace(**given: object) -> dict[str, object]:
    """Where a page's blocks run. Classes in it are pickled by value, as those of a program are."""
    return {"__name__": "__main__", **given}


def _readings(temperatures: list[float]) -> pa.Table:
    times = [datetime(2013, 7, 18, hour, tzinfo=timezone.utc) for hour in range(len(temperatures))]
    return pa.table({"sensor": ["JFK"] * len(times), "time": times, "temperature": temperatures})
