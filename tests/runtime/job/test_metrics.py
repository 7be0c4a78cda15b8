"""The metrics that a real job and a real standby serve are those that the reference describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qstate.errors import UnknownState
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.serving.metrics import MetricsServer
from qstate.standby import serve_checkpoint
from tests.cli.test_command_line import run
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]
ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
DASHBOARD = ROOT / "examples" / "grafana" / "qstate.json"
ROW = re.compile(r"\| `(qstate_\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|")


class Described(NamedTuple):
    type: str
    meaning: str


def described() -> dict[str, tuple[Described, set[str]]]:
    """Each metric of the reference with its labels."""
    rows = map(ROW.fullmatch, REFERENCE.read_text().splitlines())
    return {row[1]: (Described(row[2], row[4]), set(row[3].split(", "))) for row in rows if row}


def scraped(address: tuple[str, int]) -> str:
    with urlopen("http://{}:{}/metrics".format(*address), timeout=10) as answer:
        return str(answer.read(), "utf-8")


def served(text: str) -> tuple[dict[str, Described], dict[str, set[str]]]:
    """The metrics of an answer, and the labels of those with samples."""
    metrics, labels = {}, {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        metrics[name] = Described(family.type, family.documentation)
        for sample in family.samples:
            labels[name] = set(sample.labels) - {"le"}
    return metrics, labels


def asked(job: RunningJob) -> None:
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client:
        assert client.get(JOB, "totalAmount", "a") is not None
        with pytest.raises(UnknownState):
            client.get(JOB, "no such state", "a")


def test_a_job_serves_the_metrics_of_the_reference_and_no_others(job_of: JobOf) -> None:
    job = job_of(Totals(), task_manager_metrics_ports="0", snapshot_interval=1)
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    job.epoch(1, rows_batch(("a", 1)))
    asked(job)
    until(lambda: job.manager.statistics().subtasks[0].snapshot_epoch == 0, "the snapshot is ready")
    of_job = MetricsServer(lambda: JOB, lambda: job.manager.statistics().processes, bind="127.0.0.1", ports="0")
    try:
        text = scraped(of_job.address)
        top = run("top", "{}:{}".format(*of_job.address), "--once", "--format", "jsonl", "--interval", "0.05")
    finally:
        of_job.close()
    reference = described()
    metrics, labels = served(text)
    assert metrics == {name: one for name, (one, _) in reference.items()}
    for name, found in labels.items():
        assert found == reference[name][1], name
    assert {"qstate_rows_in_total", "qstate_state_keys", "qstate_snapshot_timestamp_seconds"} <= labels.keys()
    (shown,) = json.loads(top.stdout)["subtasks"]
    assert (shown["operator"], shown["epoch"], shown["state_keys"]) == ("it", 1, 2)
    own = job.task_manager().metrics
    assert own is not None and served(scraped(own)) == (metrics, labels)


def test_the_metrics_of_a_task_manager_have_the_figures_of_its_subtasks(job_of: JobOf) -> None:
    job = job_of(Totals(fan_out=2), task_manager_metrics_ports="0", backend="rocksdb")
    job.epoch(0, rows_batch(("a", 1), ("b", 2), ("a", 3)))
    job.manager.finalize(QUERY, 0)
    until(lambda: job.manager.statistics().subtasks[0].state.entries == 2, "the state is committed")
    lines = scraped(job.task_manager().metrics or ("", 0)).splitlines()
    labels = f'{{job="{JOB}",operator="it",process="0",subtask="0"}}'
    for sample in (
        f"qstate_rows_in_total{labels} 3.0",
        f"qstate_rows_out_total{labels} 6.0",
        f"qstate_epoch{labels} 0.0",
        f"qstate_epochs_total{labels} 1.0",
        f"qstate_state_entries{labels} 2.0",
        f'qstate_restarts_total{{job="{JOB}",process="0"}} 0.0',
    ):
        assert sample in lines
    assert not any(line.startswith("qstate_state_keys{") for line in lines), "RocksDB does not count keys"


def test_a_standby_serves_its_metrics_by_the_same_names(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    job.manager.finalize(QUERY, 0)
    place = tmp_path / "checkpoint"
    with serve_checkpoint(place, proxy_ports="0", server_ports="0", metrics_ports="0") as standby:
        text = scraped(standby.metrics_address or ("", 0))
    metrics, labels = served(text)
    assert metrics == {name: one for name, (one, _) in described().items()}
    assert {"qstate_standby_epoch", "qstate_standby_looks_total"} <= labels.keys()
    assert f'qstate_standby_epoch{{job="{JOB}",operator="it",process="standby"}} 0.0' in text.splitlines()
    assert "qstate_epoch" not in labels


def test_a_standby_of_a_job_has_metrics_of_its_own_and_in_those_of_the_job(job_of: JobOf) -> None:
    job = job_of(Totals(), task_manager_metrics_ports="0", standby_replicas=1)
    job.epoch(0, rows_batch(("a", 1)))
    job.manager.finalize(QUERY, 0)
    sample = f'qstate_standby_epoch{{job="{JOB}",operator="it",process="standby 0"}} 0.0'
    until(lambda: bool(job.manager.standbys()), "the standby is up")
    (standby,) = job.manager.standbys()
    assert standby.metrics is not None
    until(lambda: sample in scraped(standby.metrics).splitlines(), "it serves the epoch")
    with_job = MetricsServer(lambda: JOB, lambda: job.manager.statistics().processes, bind="127.0.0.1", ports="0")
    try:
        assert sample in scraped(with_job.address).splitlines()
    finally:
        with_job.close()


def queries(found: Any) -> Iterator[str]:
    """The queries of a dashboard: those of its panels and of its variables."""
    if isinstance(found, dict):
        yield from (str(found[name]) for name in ("expr", "definition") if name in found)
    if isinstance(found, dict | list):
        for part in found.values() if isinstance(found, dict) else found:
            yield from queries(part)


def test_the_dashboard_asks_for_metrics_and_labels_that_are_served() -> None:
    empty = MetricsServer(lambda: JOB, list, bind="127.0.0.1", ports="0")
    try:
        known, _ = served(scraped(empty.address))
    finally:
        empty.close()
    labels = {name: found for name, (_, found) in described().items()}
    asked_for = set()
    dashboard = json.loads(DASHBOARD.read_text())
    for query in queries(dashboard):
        names = set(re.findall(r"\bqstate_\w+", query))
        assert names, query
        for name in names:
            of = name.removesuffix("_bucket") if name not in known else name
            assert of in known, query
            assert name == of or known[of].type == "histogram", query
            for used in re.findall(rf"{name}\{{([^}}]*)\}}", query):
                assert set(re.findall(r"(\w+)=~?", used)) <= labels[of], query
            grouped = [one.strip() for by in re.findall(r"by \(([^)]*)\)", query) for one in by.split(",")]
            assert set(grouped) <= labels[of] | {"le"}, query
            asked_for.add(of)
        assert [query.count(one) for one in "([{"] == [query.count(one) for one in ")]}"], query
    assert known.keys() - asked_for <= {"qstate_snapshot_epoch"}, "the dashboard shows every metric but this"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places), "no panel covers another"
