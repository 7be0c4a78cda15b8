"""Jobs, states and keys over HTTP, against states that are really served."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from qstate.gateway import reads
from tests.gateway.running_gateway import STATE, running_gateway
from tests.project.served_job import CONTENTS, serve


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["type"] == f"urn:qstate:failure:{code.lower()}"
    return found


def test_jobs_are_listed(http: httpx.Client) -> None:
    assert http.get("/v1/jobs").json() == {"jobs": [{"name": "nyc", "figures": None}]}


def test_a_job_without_metrics_has_no_figures(http: httpx.Client) -> None:
    answer = {"name": "nyc", "figures": None, "subtasks": [], "serving": [], "standby": []}
    assert http.get("/v1/jobs/nyc").json() == answer


def test_states_are_listed_with_kind_and_types(http: httpx.Client) -> None:
    states = http.get("/v1/jobs/nyc/states").json()["states"]
    assert [state["name"] for state in states] == sorted(CONTENTS)
    assert states[0]["key_types"] == ["string", "bigint", "binary"]
    assert "scans" in states[0]["capabilities"]


def test_a_state_says_who_owns_its_key_groups(http: httpx.Client) -> None:
    found = http.get(STATE).json()
    assert (found["kind"], found["max_parallelism"]) == ("value", 128)
    (owner,) = found["owners"]
    assert (owner["start"], owner["stop"], owner["host"]) == (0, 128, "127.0.0.1")


@pytest.mark.parametrize("state", ["lastTemperature", "visits", "lastDelays", "totalDistance", "meanDelay"])
def test_the_value_of_every_kind_is_json(http: httpx.Client, state: str) -> None:
    answer = http.get(f"/v1/jobs/nyc/states/{state}/value", params={"key": "JFK"})
    assert answer.json()["value"] == CONTENTS[state][None]["JFK"]
    assert (answer.json()["epoch"], answer.json()["isolation"]) == (0, "live")


def test_a_key_of_several_columns_is_one_parameter_for_each(http: httpx.Client) -> None:
    answer = http.get("/v1/jobs/nyc/states/byPlace/value?key=JFK&key=7&key=ff").json()
    assert (answer["key"], answer["value"]) == (["JFK", 7, "ff"], "AAE=")


@pytest.mark.parametrize("text", ["2013-07-18", '"2013-07-18"'])
def test_a_namespace_has_a_value_of_its_own(http: httpx.Client, text: str) -> None:
    answer = http.get(f"{STATE}/value", params={"key": "JFK", "namespace": text}).json()
    assert (answer["namespace"], answer["value"]) == ("2013-07-18", 100.04)


def test_a_committed_value_can_be_demanded(http: httpx.Client) -> None:
    parameters: dict[str, Any] = {"key": "JFK", "isolation": "committed", "min_epoch": 0, "max_staleness": 60}
    assert http.get(f"{STATE}/value", params=parameters).json()["isolation"] == "committed"


def test_a_value_that_has_not_changed_is_not_sent_again(http: httpx.Client) -> None:
    tag = http.get(f"{STATE}/value?key=JFK").headers["etag"]
    assert tag.startswith('W/"0-')
    answer = http.get(f"{STATE}/value?key=JFK", headers={"If-None-Match": f'"x", {tag}'})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    # Some proxies take the W/ away: whether a tag is weak does not count in If-None-Match (RFC 9110, 13.1.2).
    assert http.get(f"{STATE}/value?key=JFK", headers={"If-None-Match": tag.removeprefix("W/")}).status_code == 304
    assert http.get(f"{STATE}/value?key=JFK", headers={"If-None-Match": 'W/"0-other"'}).status_code == 200


def test_a_batch_has_a_result_for_each_key(http: httpx.Client) -> None:
    answer = http.post(f"{STATE}/values", json={"keys": ["JFK", "nowhere", "JFK"]}).json()["results"]
    found = {"key": "JFK", "found": True, "epoch": 0, "value": 71.06}
    assert answer == [found, {"key": "nowhere", "found": False}, found]


def test_a_batch_takes_keys_of_several_columns_and_demands(http: httpx.Client) -> None:
    body = {"keys": [["JFK", 7, "ff"]], "isolation": "committed", "namespace": None, "timeout": 3}
    (found,) = http.post("/v1/jobs/nyc/states/byPlace/values", json=body).json()["results"]
    assert found["value"] == "AAE="


@pytest.mark.parametrize("part", [1, 100])
def test_a_batch_has_no_more_values_when_its_answer_is_large(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(reads, "PART_KEYS", part)
    monkeypatch.setattr(reads, "MOST_ANSWER_BYTES", 60)
    results = http.post(f"{STATE}/values", json={"keys": ["JFK", "JFK", "JFK"]}).json()["results"]
    assert [one.get("value") for one in results] == [71.06, 71.06, None]
    assert results[2]["error"]["code"] == "TOO_LARGE"


def test_another_proxy_is_asked_when_one_does_not_answer(tmp_path: Path) -> None:
    with serve(tmp_path) as proxy, running_gateway(("127.0.0.1", 1), proxy) as gateway:
        assert httpx.get(f"{gateway.url}{STATE}/value?key=JFK", timeout=20).json()["value"] == 71.06


def test_entries_come_page_by_page(http: httpx.Client) -> None:
    found, cursor = [], None
    while True:
        page = http.get(f"{STATE}/entries", params={"limit": 1} | ({"cursor": cursor} if cursor else {})).json()
        found += page["entries"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert [(one["key"], one["namespace"], one["value"]) for one in found] == [
        ("JFK", "2013-07-18", 100.04),
        ("JFK", None, 71.06),
    ]


@pytest.mark.parametrize(
    ("parameters", "count"),
    [("", 2), ("begins=J", 2), ("begins=L", 0), ("column=JFK", 2), ("column=J", 0), ("namespace=null", 1)],
)
def test_entries_and_count_take_the_same_selection(http: httpx.Client, parameters: str, count: int) -> None:
    assert http.get(f"{STATE}/count?{parameters}").json() == {"count": count}
    assert len(http.get(f"{STATE}/entries?{parameters}").json()["entries"]) == count


def test_entries_may_have_keys_only(http: httpx.Client) -> None:
    (found,) = http.get(f"{STATE}/entries?values=false&namespace=null").json()["entries"]
    assert found == {"key": "JFK", "namespace": None, "epoch": 0}


def test_the_namespaces_of_a_key_are_listed(http: httpx.Client) -> None:
    assert http.get(f"{STATE}/namespaces?key=JFK").json() == {"namespaces": ["2013-07-18", None]}


def test_what_is_not_there_is_said(http: httpx.Client) -> None:
    problem(http.get("/v1/jobs/other/states"), 404, "UNKNOWN_JOB")
    problem(http.get("/v1/jobs/other"), 404, "UNKNOWN_JOB")
    problem(http.get("/v1/jobs/nyc/states/other"), 404, "UNKNOWN_STATE")
    problem(http.get("/v1/jobs/nyc/states/other/value?key=1"), 404, "UNKNOWN_STATE")
    problem(http.get(f"{STATE}/value?key=nowhere"), 404, "KEY_NOT_FOUND")
    problem(http.get("/v1/nothing"), 404, "MALFORMED")


NAMES = ["a/b", "/", "%2F", "%", "?", "#a", "a b", "...", "a\nb", "\0", "\u2028", "%2e%2e", "+", "\\", "states"]


def test_any_name_but_steps_of_a_path_can_be_asked_for(tmp_path: Path) -> None:
    with (
        serve(tmp_path, contents={name: {name: name} for name in NAMES}) as proxy,
        running_gateway(proxy) as gateway,
        httpx.Client(base_url=gateway.url, timeout=20) as http,
    ):
        for name in NAMES:
            answer = http.get(f"/v1/jobs/nyc/states/{quote(name, safe='')}/value", params={"key": name})
            assert (answer.json()["key"], answer.json()["value"]) == (name, name)


def test_names_may_contain_slashes_and_letters_of_any_language(http: httpx.Client) -> None:
    assert problem(http.get("/v1/jobs/a%2Fb%20%C3%BC/states"), 404, "UNKNOWN_JOB")["details"] == {"job": "a/b ü"}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (f"{STATE}/value", "1 columns"),
        (f"{STATE}/value?key=a&key=b", "1 columns"),
        (f"{STATE}/value?key=a&kez=b", "no parameter 'kez'"),
        (f"{STATE}/value?key=a&isolation=none", "isolation"),
        (f"{STATE}/value?key=a&min_epoch=x", "min_epoch must be a whole number"),
        (f"{STATE}/value?key=a&min_epoch=-1", "min_epoch"),
        (f"{STATE}/value?key=a&timeout=nan", "timeout"),
        (f"{STATE}/value?key=a&timeout=0", "timeout"),
        (f"{STATE}/value?key=a&timeout=1&timeout=2", "once"),
        (f"{STATE}/value?key=a&namespace=1.5", "key"),
        ("/v1/jobs/nyc/states/byPlace/value?key=JFK&key=x&key=ff", "whole number"),
        (f"{STATE}/entries?limit=0", "limit"),
        (f"{STATE}/entries?limit=1001", "limit"),
        (f"{STATE}/entries?cursor=x", "cursor"),
        (f"{STATE}/entries?cursor=eHh4", "cursor"),
        (f"{STATE}/entries?begins=a&column=b", "exclude"),
        (f"{STATE}/entries?values=1", "true or false"),
        (f"/v1/jobs/{'x' * 256}/states", "255"),
    ],
)
def test_a_mistake_is_said_and_what_was_expected(http: httpx.Client, path: str, part: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 400, answer.text
    assert part in problem(answer, 400, answer.json()["code"])["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": ["a"], "other": 1}',
        b'{"keys": [1.5]}',
        b'{"keys": [["a", "b"]]}',
        b'{"keys": ["a"], "isolation": 5}',
        b'{"keys": ["\xff"]}',
        b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"keys": [' + b",".join([b'"a"'] * 1001) + b"]}",
    ],
)
def test_a_body_of_another_form_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post(f"{STATE}/values", content=body, headers={"Content-Type": "application/json"})
    problem(answer, 400, "MALFORMED")


def test_a_body_that_is_too_large_is_refused(http: httpx.Client) -> None:
    answer = http.post(f"{STATE}/values", content=b" " * (1 << 21), headers={"Content-Type": "application/json"})
    problem(answer, 413, "TOO_LARGE")


def test_a_body_must_say_that_it_is_json(http: httpx.Client) -> None:
    answer = http.post(f"{STATE}/values", content=b'{"keys": ["JFK"]}', headers={"Content-Type": "text/plain"})
    problem(answer, 400, "MALFORMED")


def test_times_that_are_very_long_are_taken(http: httpx.Client) -> None:
    parameters: dict[str, Any] = {"key": "JFK", "isolation": "committed", "wait": 1e308, "max_staleness": 1e308}
    assert http.get(f"{STATE}/value", params=parameters).json()["value"] == 71.06


def test_other_methods_are_refused(http: httpx.Client) -> None:
    assert problem(http.get(f"{STATE}/values?keys=JFK"), 405, "MALFORMED")["title"] == "Method Not Allowed"
    assert problem(http.delete(f"{STATE}/value?key=JFK"), 405, "MALFORMED")["title"] == "Method Not Allowed"


def test_large_answers_are_compressed_for_those_who_ask(http: httpx.Client) -> None:
    assert http.get("/v1/jobs/nyc/states").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in http.get("/v1/jobs/nyc/states", headers={"Accept-Encoding": "identity"}).headers


@pytest.mark.parametrize("refusal", ["gzip;q=0", "br, gzip ; q=0.000, *", "*, gzip;q=0."])
def test_answers_are_not_compressed_for_those_who_refuse_it(http: httpx.Client, refusal: str) -> None:
    answer = http.get("/v1/jobs/nyc/states", headers={"Accept-Encoding": refusal})
    assert "content-encoding" not in answer.headers
    assert "Accept-Encoding" in answer.headers["vary"]


@pytest.mark.parametrize("wish", ["gzip;q=0.5", "deflate, gzip;q=1.0", "identity;q=0, gzip"])
def test_answers_are_compressed_for_those_who_weigh_it(http: httpx.Client, wish: str) -> None:
    answer = http.get("/v1/jobs/nyc/states", headers={"Accept-Encoding": wish})
    assert answer.headers["content-encoding"] == "gzip"
