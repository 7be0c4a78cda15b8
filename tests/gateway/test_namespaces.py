"""Namespaces in requests: what they say does not depend on whether a text looks like JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from qstate.cli import main as cli
from qstate.keys import ColumnType, Namespace
from tests.gateway.event_stream import stream
from tests.gateway.page.served import TEMPERATURE, ServedJob, serving
from tests.gateway.running_gateway import STATE, running_gateway

TEXTS = ["123", "true", "null", "NaN", "[1]", '{"a": 1}', "2013-07-18", "", '"q"']


class Asked:
    """A gateway and a proxy in front of one state, whose value in each namespace is its place in the list."""

    def __init__(self, opened: ExitStack, job: ServedJob) -> None:
        served = opened.enter_context(serving(job))
        gateway = opened.enter_context(running_gateway(served.proxy.address))
        self.proxy = "{}:{}".format(*served.proxy.address)
        self.url = f"{gateway.url}{STATE}"

    def value(self, parameter: str) -> Any:
        answer = httpx.get(f"{self.url}/value?key=JFK&namespace={quote(parameter, safe='')}").json()
        return answer.get("value", answer.get("code"))


AskedOf = Callable[..., Asked]


@pytest.fixture
def asked_of(tmp_path: Path) -> Iterator[AskedOf]:
    with ExitStack() as opened:

        def start(namespaces: list[Namespace], types: tuple[ColumnType, ...] | None) -> Asked:
            job = ServedJob("nyc", [TEMPERATURE], tmp_path, namespace_types=types)
            for number, namespace in enumerate(namespaces):
                job.put_in(namespace, lastTemperature={"JFK": float(number)})
            return Asked(opened, job)

        yield start


def test_of_a_state_whose_namespaces_are_text(asked_of: AskedOf, capsys: pytest.CaptureFixture[str]) -> None:
    asked = asked_of(TEXTS, (ColumnType.STRING,))
    for number, text in enumerate(TEXTS):
        assert asked.value(json.dumps(text)) == number
        if text not in ("null", '"q"'):
            assert asked.value(text) == number
    assert asked.value("null") == "KEY_NOT_FOUND"
    found = httpx.get(f"{asked.url}/entries?namespace=123").json()["entries"]
    assert [(one["namespace"], one["value"]) for one in found] == [("123", 0)]
    assert httpx.get(f"{asked.url}/count?namespace=123").json() == {"count": 1}
    with stream(f"{asked.url}/changes?key=JFK&namespace=123") as events:
        assert next(events).data["changes"][0]["value"] == 0
    command = ["get", "nyc", "lastTemperature", "JFK", "--proxy", asked.proxy, "--namespace", "123"]
    assert cli.main(command) == cli.SUCCESS
    assert capsys.readouterr().out == "0.0\n"


def test_in_a_body_text_is_accepted_for_every_type(asked_of: AskedOf) -> None:
    asked = asked_of([5], (ColumnType.BIGINT,))
    for namespace, status in ((5, 200), ("5", 200), ("a", 400), (True, 400), ([5], 400), (5.5, 400)):
        answer = httpx.post(f"{asked.url}/values", json={"keys": ["JFK"], "namespace": namespace})
        assert answer.status_code == status, answer.text
        assert status == 400 or answer.json()["results"][0]["value"] == 0


def test_of_a_state_whose_namespaces_are_dates(asked_of: AskedOf) -> None:
    asked = asked_of([date(2013, 7, 18)], (ColumnType.DATE,))
    assert [asked.value(form) for form in ("2013-07-18", '"2013-07-18"', '{"date":"2013-07-18"}')] == [0, 0, 0]
    assert [asked.value(form) for form in ("123", "yesterday", "[]")] == ["WRONG_KEY_TYPE", "MALFORMED", "MALFORMED"]


def test_of_a_state_whose_namespaces_may_be_anything(asked_of: AskedOf) -> None:
    asked = asked_of([123, "123", "a", date(2013, 7, 18), "2013-07-18"], None)
    forms = ["123", '"123"', "a", '{"date":"2013-07-18"}', "2013-07-18"]
    assert [asked.value(form) for form in forms] == [0, 1, 2, 3, 4]
