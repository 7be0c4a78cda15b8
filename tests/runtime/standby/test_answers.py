"""A standby gives the same answers as its job, and clear errors for queries that it cannot answer."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.cli.completion import names
from qstate.client import QueryableStateClient
from qstate.errors import (
    EpochNotReached,
    FailureCode,
    TooStale,
    Unauthenticated,
    UnknownJob,
    UnknownState,
    UnsupportedQuery,
    WrongKeyType,
)
from qstate.protocol.messages import Failure
from qstate.standby import Standby
from tests.cli.test_command_line import run
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, RunningJob
from tests.runtime.serving.raw_client import RawClient
from tests.runtime.standby.asked import KEYS, committed_answers, feed, in_any_order, reached, settled, total
from tests.runtime.standby.functions import AGGREGATING, JSON, NAMES, EveryKind, window_of

JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]
AMOUNTS = (7, 4, 5, 9, 0, 3, 10)


def scanned(address: tuple[str, int], name: str) -> dict[object, tuple[int, str]]:
    """What a committed scan visits: by key and namespace, the epoch and the value."""
    with QueryableStateClient(*address, serializers=[JSON]) as client:
        entries = list(client.scan(JOB, name, isolation="committed"))
    return {(entry.key, entry.namespace): (entry.view.epoch, shown(entry.view.contents())) for entry in entries}


def parts_of(address: tuple[str, int], name: str) -> list[object]:
    """What a client reads part by part: the whole value in pieces, and a page or slice with its epoch."""
    found: list[object] = []
    with QueryableStateClient(*address, serializers=[JSON]) as client:
        kind = next(state["kind"] for state in client.states(JOB) if state["name"] == name)
        for key in KEYS[:3]:
            whole = client.get_large(JOB, name, key, isolation="committed")
            assert whole == client.get(JOB, name, key, isolation="committed")
            found.append((whole.epoch, shown(whole.contents())))
            if kind == "map":
                page = client.get_page(JOB, name, key, isolation="committed", limit=2)
                found.append((page.view.epoch, page.view.entries(), page.after))
            elif kind == "list":
                part = client.get_slice(JOB, name, key, isolation="committed", start=1)
                found.append(None if part is None else (part.epoch, part.get()))
    return found


def shown(contents: object) -> str:
    return repr(sorted(contents.items())) if isinstance(contents, dict) else repr(contents)


def fed(job: RunningJob) -> RunningJob:
    for epoch, amount in enumerate(AMOUNTS):
        feed(job, epoch, amount)
    feed(job, len(AMOUNTS), 1, commit=False)
    return job


@pytest.mark.parametrize(
    ("jobs", "standbys"), [("heap", "heap"), ("heap", "rocksdb"), ("rocksdb", "heap")], ids=lambda name: str(name)
)
def test_answers_are_those_of_the_job_byte_for_byte(
    job_of: JobOf, standby_of: StandbyOf, jobs: str, standbys: str
) -> None:
    job = fed(job_of(EveryKind(), backend=jobs, parallelism=2))
    standby = standby_of(backend=standbys, descriptors=[AGGREGATING])
    assert standby.status().epochs == {"it": len(AMOUNTS) - 1}
    proxy = job.manager.wait_for_proxy(20.0)
    for name in NAMES:
        for namespace in (None, window_of(0), window_of(1), "nothing is here"):
            answers = in_any_order(committed_answers(proxy, name, namespace))
            assert in_any_order(committed_answers(standby.address, name, namespace)) == answers
            assert all(data is not None for _, data in answers.values()) == (namespace != "nothing is here")
        assert (found := scanned(standby.address, name)) == scanned(proxy, name)
        assert found
        assert parts_of(standby.address, name) == parts_of(proxy, name)


def test_states_followed_epoch_by_epoch_are_those_read_at_once(job_of: JobOf, standby_of: StandbyOf) -> None:
    """A standby from the first epoch on, and one that comes last, show the same bytes."""
    job = job_of(EveryKind(), parallelism=2)
    first = standby_of(descriptors=[AGGREGATING])
    for epoch, amount in enumerate(AMOUNTS):
        feed(job, epoch, amount)
        reached(first, epoch)
    last = standby_of(descriptors=[AGGREGATING])
    assert (first.status().fills, last.status().fills) == (1, 1)
    for name in NAMES:
        for namespace in (None, window_of(0)):
            followed, read = (committed_answers(one.address, name, namespace) for one in (first, last))
            assert in_any_order(followed) == in_any_order(read)


def test_descriptions_are_those_of_the_job(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = fed(job_of(EveryKind()))
    standby = standby_of()
    with (
        QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as of_job,
        QueryableStateClient(*standby.address) as of_standby,
    ):
        assert of_standby.jobs() == [JOB]
        assert of_standby.states(JOB) == of_job.states(JOB)


@pytest.mark.parametrize("direct", [None, False, True], ids=["reached", "proxy", "direct"])
def test_ordinary_client_reads_every_kind(job_of: JobOf, standby_of: StandbyOf, direct: bool | None) -> None:
    fed(job_of(EveryKind(), parallelism=2))
    standby = standby_of(descriptors=[AGGREGATING])
    with QueryableStateClient(*standby.address, direct=direct, serializers=[JSON]) as client:

        def get(state: str) -> object:
            return client.get(JOB, state, KEYS[3], isolation="committed")

        assert get("value").value() == {"customer": KEYS[3], "amounts": [10, -10]}
        assert [tuple(element) for element in get("list").get()] == [(3, KEYS[3]), (10, KEYS[3])]
        assert dict(get("map").entries()) == {"entry 2": 10 / 3, "entry 3": 1.0}
        assert get("totalAmount").get() == 13
        assert get("mean").get() == 6.5
        assert get("jsonValue").value() == {"amount": 10, "key": KEYS[3]}
        assert [dict(element) for element in get("jsonList").get()] == [{"n": 3}, {"n": 10}]
        assert {key: list(value) for key, value in get("jsonMap").entries()} == {0: [3], 1: [10]}
        assert client.get(JOB, "totalAmount", "missing", isolation="committed") is None


def test_live_queries_are_refused_with_the_reason(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(Totals()), 0)
    with QueryableStateClient(*standby_of().address) as client:
        with pytest.raises(UnsupportedQuery, match="the job is not running here"):
            client.get(JOB, "totalAmount", KEYS[0])
        with pytest.raises(UnsupportedQuery, match="the job is not running here"):
            client.get_many(JOB, "totalAmount", KEYS)


def test_describe_counts_the_committed_keys_of_a_standby(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(Totals()), 0)
    host, port = standby_of().address
    answer = run("describe", JOB, "totalAmount", "--format", "json", "--proxy", f"{host}:{port}")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["keys"] == len(scanned((host, port), "totalAmount")) > 0


def test_keys_of_a_standby_complete_a_command(
    job_of: JobOf, standby_of: StandbyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "PATIENCE_S", 20.0)
    feed(job_of(Totals()), 0)
    host, port = standby_of().address
    given = Namespace(profile=None, proxy=[f"{host}:{port}"], job=JOB, state="totalAmount")
    found = {one.text for one in names.LiveNames(keys=True).of("KEY", given, "")}
    assert found and found <= {str(key) for key in KEYS}


def test_aggregating_state_needs_its_function(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(EveryKind()), 0)
    with QueryableStateClient(*standby_of().address) as client:
        with pytest.raises(UnsupportedQuery, match="give the state's descriptor to the standby"):
            client.get(JOB, "mean", KEYS[0], isolation="committed")
        assert client.get(JOB, "totalAmount", KEYS[0], isolation="committed").get() == 1


def test_descriptor_that_declares_another_form_is_not_used(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(EveryKind()), 0)
    other = type(AGGREGATING)(AGGREGATING.name, str, aggregate_function=AGGREGATING.aggregate_function)
    with (
        QueryableStateClient(*standby_of(descriptors=[other]).address) as client,
        pytest.raises(UnsupportedQuery, match="cannot be used as it was stored"),
    ):
        client.get(JOB, "mean", KEYS[0], isolation="committed")


def test_failures_have_the_codes_that_a_job_gives_them(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(Totals()), 0)
    with QueryableStateClient(*standby_of().address, timeout_s=2.0) as client:
        with pytest.raises(UnknownJob):
            client.get("another", "totalAmount", KEYS[0], isolation="committed")
        with pytest.raises(UnknownState):
            client.get(JOB, "another", KEYS[0], isolation="committed")
        with pytest.raises(WrongKeyType):
            client.get(JOB, "totalAmount", 7, isolation="committed")
        with pytest.raises(EpochNotReached):
            client.get(JOB, "totalAmount", KEYS[0], isolation="committed", min_epoch=1, wait_s=0.1)


def test_a_configured_token_is_required(job_of: JobOf, standby_of: StandbyOf) -> None:
    feed(job_of(Totals()), 0)
    standby = standby_of(auth_token="open sesame")
    with QueryableStateClient(*standby.address, timeout_s=2.0) as client, pytest.raises(Unauthenticated):
        client.get(JOB, "totalAmount", KEYS[0], isolation="committed")
    with QueryableStateClient(*standby.address, token="open sesame") as client:
        assert client.get(JOB, "totalAmount", KEYS[0], isolation="committed").get() == 1


def test_nothing_is_shown_that_is_not_known_to_be_committed(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    feed(job, 0, commit=False)
    standby = standby_of()
    with RawClient(standby.address) as client:
        # The proxy asks again until just before the deadline.
        answer = client.get((JOB, "totalAmount"), KEYS[0], options={"isolation": "committed"}, deadline_ms=1_000)
        assert isinstance(answer, Failure) and answer.code == FailureCode.NO_COMMITTED_EPOCH
        live = client.get((JOB, "totalAmount"), KEYS[0])
        assert isinstance(live, Failure) and live.code == FailureCode.UNSUPPORTED
        unknown = client.get((JOB, "nothing"), KEYS[0], options={"isolation": "committed"})
        assert isinstance(unknown, Failure) and unknown.code == FailureCode.UNKNOWN_STATE
    assert standby.status().epochs == {"it": -1}
    feed(job, 1, commit=False)
    reached(standby, 0)
    assert total(standby.address) == (1, 0), "that epoch 1 was begun proves epoch 0"


def test_savepoint_is_served_as_of_when_it_was_made(job_of: JobOf, standby_of: StandbyOf, tmp_path: Path) -> None:
    job = job_of(EveryKind(), parallelism=2)
    for epoch, amount in enumerate(AMOUNTS):
        feed(job, epoch, amount)
    write_savepoint(open_source(str(job.manager.checkpoint_dir)), tmp_path / "savepoint")
    standby = standby_of(tmp_path / "savepoint", descriptors=[AGGREGATING])
    proxy = job.manager.wait_for_proxy(20.0)
    settled(proxy, len(AMOUNTS) - 1)
    for name in NAMES:
        assert in_any_order(committed_answers(standby.address, name)) == in_any_order(committed_answers(proxy, name))
    with (
        QueryableStateClient(*standby.address) as client,
        pytest.raises(TooStale),
    ):
        client.get(JOB, "totalAmount", KEYS[0], isolation="committed", max_staleness_s=0.0, wait_s=0.1)
    total(standby.address, max_staleness_s=3600.0)
