"""Changes as server-sent events, against a history that the tests commit."""

from __future__ import annotations

import httpx

from tests.gateway.event_stream import stream
from tests.gateway.running_gateway import STATE, RunningGateway
from tests.runtime.serving.feeds import History, put

Served = tuple[RunningGateway, History]


def test_changes_of_a_key_come_after_its_value(history: Served) -> None:
    gateway, committed = history
    with stream(f"{gateway.url}{STATE}/changes?key=JFK") as events:
        first = next(events)
        assert (first.name, first.data["epoch"]) == ("snapshot", 0)
        assert first.data["changes"] == [{"change": "put", "key": "JFK", "namespace": None, "value": 71.06}]
        assert [next(events).data["changes"][0]["value"] for _ in range(2)] == [72.0, 73.0]
        committed.commit(3, put("JFK", 74.0, state="value"))
        fourth = next(events)
        assert (fourth.name, fourth.data["complete"]) == ("changes", 3)
        assert fourth.data["changes"][0]["value"] == 74.0


def test_a_stream_is_resumed_by_the_id_of_its_last_event(history: Served) -> None:
    gateway, committed = history
    url = f"{gateway.url}{STATE}/changes?from_epoch=0"
    with stream(url) as events:
        seen = [next(events), next(events)]
    committed.commit(3, put("LGA", 81.0, state="value"))
    with stream(f"{gateway.url}{STATE}/changes", headers={"Last-Event-ID": seen[-1].id}) as events:
        rest = [next(events), next(events)]
    assert [event.data["epoch"] for event in (*seen, *rest)] == [0, 1, 2, 3]
    with stream(f"{gateway.url}{STATE}/changes", params={"after": rest[0].id}) as events:
        assert next(events).data == rest[1].data


def test_a_stream_that_cannot_begin_is_an_http_failure(history: Served) -> None:
    gateway, _ = history
    for path, status in (
        ("/v1/jobs/other/states/x/changes", 404),
        ("/v1/jobs/nyc/states/other/changes", 404),
        (f"{STATE}/changes?key=a&begins=b", 400),
        (f"{STATE}/changes?keys=5", 400),
        (f"{STATE}/changes?keys=[]", 400),
        (f"{STATE}/changes?after=x", 400),
        (f"{STATE}/changes?from_epoch=-1", 400),
    ):
        answer = httpx.get(gateway.url + path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
