"""Laws of tracing: a sampled get is one trace, from the client through the proxy to each read, and others are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult

from qstate.client import QueryableStateClient
from qstate.errors import FailureCode, UnknownState, UnsupportedQuery
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.client.real_job import KEYS, Job, MakeClient
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, rows_batch, until
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import TableOracle

EXPORTER = InMemorySpanExporter()


class Switched(Sampler):
    """Samples what the test says."""

    sampler: Sampler = ALWAYS_ON

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        return self.sampler.should_sample(*args, **options)

    def get_description(self) -> str:
        return "switched"


SAMPLER = Switched()


@pytest.fixture(scope="module")
def _provider() -> None:
    """There is one provider in a process, for ever."""
    provider = TracerProvider(sampler=SAMPLER)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def _no_spans_of_other_tests(_provider: None) -> None:
    EXPORTER.clear()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, tracing=True)
    yield job
    job.close()


@pytest.fixture
def polled(tmp_path: Path) -> Iterator[tuple[tuple[str, int], History]]:
    """The proxy of a state with a history."""
    history, registry = History(tmp_path / "checkpoint"), StateRegistry()
    (instance,) = history.instances()
    options = EndpointOptions(tracing=True)
    with StateServer(registry, options) as server, ClientProxy(options) as proxy:
        owner = Owner(instance.key_groups, *server.address, registry.register(instance))
        table = LocationTable("job", instance.describe(), instance.max_parallelism, (owner,))
        proxy.set_location_oracle("job", TableOracle(lastTemperature=table))
        yield proxy.address, history


def in_caller() -> AbstractContextManager[Any]:
    return trace.get_tracer("test").start_as_current_span("caller")


def spans(name: str) -> list[Any]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def children(parent: Any, name: str) -> list[Any]:
    return [span for span in spans(name) if span.parent and span.parent.span_id == parent.context.span_id]


def test_a_get_through_the_proxy_is_one_trace_down_to_the_read(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, direct=False, tracing=True) as client:
        assert client.get("job", "reducing", "key-7").get() == 107
    until(lambda: len(EXPORTER.get_finished_spans()) == 3, "three spans have ended")
    (get,) = spans("qstate get")
    assert get.parent is None and get.kind is trace.SpanKind.CLIENT
    assert dict(get.attributes) == {"qstate.job": "job", "qstate.state": "reducing", "qstate.keys": 1}
    (proxy,) = children(get, "qstate proxy")
    (read,) = children(proxy, "qstate read")
    assert {span.kind for span in (proxy, read)} == {trace.SpanKind.SERVER}
    assert dict(read.attributes) == {"qstate.state": "reducing", "qstate.keys": 1}
    assert "key-7" not in str([span.to_json() for span in EXPORTER.get_finished_spans()]), "keys are not told"


def test_a_part_is_traced_as_a_get_is(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, direct=False, tracing=True) as client:
        assert client.get_size("job", "map", "key-7") == 2
    until(lambda: len(EXPORTER.get_finished_spans()) == 3, "three spans have ended")
    (get,) = spans("qstate get")
    (proxy,) = children(get, "qstate proxy")
    assert len(children(proxy, "qstate read")) == 1


def test_a_get_of_many_keys_has_a_read_at_each_owner(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, direct=True, tracing=True) as client:
        assert len(client.get_many("job", "reducing", KEYS)) == len(KEYS)
    until(lambda: len(spans("qstate read")) == 2, "both reads have ended")
    (get,) = spans("qstate get")
    assert sum(read.attributes["qstate.keys"] for read in children(get, "qstate read")) == len(KEYS)


def test_each_page_of_a_scan_is_a_span_down_to_the_read(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, direct=False, tracing=True) as client, in_caller():
        assert len(list(client.scan("job", "reducing", namespace=None))) == len(KEYS)
    (caller,) = spans("caller")
    pages = children(caller, "qstate scan")
    assert len(pages) >= 2, "one of each owner, more if a page took long"
    until(lambda: len(spans("qstate read")) == len(pages), "the reads of all pages have ended")
    for page in pages:
        assert dict(page.attributes) == {"qstate.job": "job", "qstate.state": "reducing"}
        (proxy,) = children(page, "qstate proxy")
        (read,) = children(proxy, "qstate read")
        assert dict(read.attributes) == {"qstate.state": "reducing"}


def test_a_poll_is_a_span_down_to_the_answer_of_the_owner(
    polled: tuple[tuple[str, int], History], make: MakeClient
) -> None:
    address, history = polled
    history.commit(0, put("JFK", 1))
    with (
        make(address, direct=False, tracing=True) as client,
        client.subscribe("job", "lastTemperature", "JFK", from_epoch=0) as subscription,
    ):
        assert [change.value for change in subscription.next_batch(10.0)] == [1]
    until(lambda: len(spans("qstate poll")) == len(spans("qstate read")) == 1, "the spans of the poll have ended")
    (poll,) = spans("qstate poll")
    (proxy,) = children(poll, "qstate proxy")
    (read,) = children(proxy, "qstate read")
    assert dict(poll.attributes) == {"qstate.job": "job", "qstate.state": "lastTemperature", "qstate.keys": 1}
    assert dict(read.attributes) == {"qstate.state": "lastTemperature", "qstate.keys": 1}
    assert poll.status.is_ok or poll.status.status_code is trace.StatusCode.UNSET
    assert "JFK" not in str([span.to_json() for span in EXPORTER.get_finished_spans()]), "keys are not told"


def test_a_failed_page_and_a_failed_poll_are_told_by_their_codes(job: Job, make: MakeClient) -> None:
    """There is no such state, and one of the job's has no changes to give."""
    with make(job.proxy.address, direct=False, tracing=True) as client:
        with pytest.raises(UnknownState):
            list(client.scan("job", "no such state"))
        with pytest.raises(UnsupportedQuery), client.subscribe("job", "reducing", from_epoch=0) as subscription:
            subscription.next_batch(10.0)
    (page,), (poll,) = spans("qstate scan"), spans("qstate poll")
    assert (page.attributes["qstate.failure"], poll.attributes["qstate.failure"]) == ("unknown_state", "unsupported")
    until(lambda: len(spans("qstate read")) == 1, "the read has ended")
    (read,) = spans("qstate read")
    assert read.attributes["qstate.failure"] == FailureCode.UNSUPPORTED


def test_a_get_is_a_child_of_the_span_of_its_caller(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, tracing=True) as client, trace.get_tracer("test").start_as_current_span("caller"):
        client.get("job", "reducing", "key-7")
    (caller,) = spans("caller")
    assert len(children(caller, "qstate get")) == 1


def test_a_failure_is_told_by_its_code(job: Job, make: MakeClient) -> None:
    with make(job.proxy.address, direct=False, tracing=True) as client, pytest.raises(UnknownState):
        client.get("job", "no such state", "a")
    (get,) = spans("qstate get")
    assert get.status.status_code is trace.StatusCode.ERROR
    assert get.attributes["qstate.failure"] == "unknown_state"


def test_a_submitted_get_ends_with_the_first_look_at_its_result(job: Job) -> None:
    with QueryableStateClient(*job.proxy.address, tracing=True) as client:
        future = client.submit("job", "reducing", "key-7")
        assert spans("qstate get") == []
        assert future.result().get() == future.result().get() == 107
    assert len(spans("qstate get")) == 1


def test_the_processes_of_a_job_are_configured_as_the_environment_says(
    job_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Task managers are no children of the program, so they configure OpenTelemetry by its entry points."""
    installed = tmp_path / "installed"
    (installed / "spans_to_a_file-1.dist-info").mkdir(parents=True)
    (installed / "spans_to_a_file-1.dist-info" / "METADATA").write_text("Name: spans-to-a-file\nVersion: 1\n")
    (installed / "spans_to_a_file-1.dist-info" / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nto_a_file = tests.runtime.client.spans_to_a_file:Configurator\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("OTEL_PYTHON_CONFIGURATOR", "to_a_file")
    monkeypatch.setenv("QSTATE_TEST_SPANS", str(tmp_path / "spans"))
    running = job_of(Totals(), tracing=True)
    running.epoch(0, rows_batch(("a", 1)))
    tracing = trace.get_tracer("test").start_as_current_span("caller")
    with QueryableStateClient(*running.manager.wait_for_proxy(20.0), direct=False, tracing=True) as client, tracing:
        assert client.get(JOB, "totalAmount", "a").get() == 1
    (get,) = spans("qstate get")
    wanted = f"{get.context.trace_id:032x}"
    until(
        lambda: (tmp_path / "spans").exists() and (tmp_path / "spans").read_text().count("\n") == 2,
        "the spans of the task manager have ended",
    )
    assert sorted((tmp_path / "spans").read_text().split()) == [f"proxy/{wanted}", f"read/{wanted}"]


def test_without_a_sampled_trace_nothing_is_sent_and_nobody_makes_a_span(
    job: Job, make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SAMPLER, "sampler", ALWAYS_OFF)
    with make(job.proxy.address, direct=False, tracing=True) as client:
        assert client.get("job", "reducing", "key-7").get() == 107
        assert len(client.get_many("job", "reducing", KEYS)) == len(KEYS)
    with make(job.proxy.address, direct=False) as client:
        monkeypatch.setattr(SAMPLER, "sampler", ALWAYS_ON)
        assert client.get("job", "reducing", "key-7").get() == 107, "a client without tracing"
    assert EXPORTER.get_finished_spans() == ()
