"""`qstate watch` against a served history."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from qstate.cli import main as cli
from tests.cli.test_command_line import assert_one_line_error, run
from tests.project.served_job import serve_history


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_history(tmp_path_factory.mktemp("history"), job="nyc") as ((host, port), _):
        yield f"{host}:{port}"


def watched(proxy: str, *arguments: str) -> list[str]:
    answer = run("watch", "nyc", "lastTemperature", *arguments, "--until", "2", "--proxy", proxy)
    assert (answer.returncode, answer.stderr) == (cli.SUCCESS, "")
    return answer.stdout.splitlines()


def rows(lines: list[str]) -> list[list[str]]:
    heads, *others = (line.split() for line in lines)
    assert heads == ["EPOCH", "CHANGE", "KEY", "NAMESPACE", "MAP", "KEY", "VALUE"]
    return [[epoch, change, key, value] for epoch, change, key, _, _, value in others]


def test_changes_of_a_key_come_after_its_value(proxy: str) -> None:
    assert rows(watched(proxy, "JFK")) == [
        ["0", "snapshot", "JFK", "71.06"],
        ["1", "put", "JFK", "72.0"],
        ["2", "put", "JFK", "73.0"],
    ]


def test_changes_of_all_keys_come_from_an_epoch_on(proxy: str) -> None:
    assert rows(watched(proxy, "--from-epoch", "2")) == [["2", "put", "JFK", "73.0"], ["2", "put", "LGA", "80.0"]]


def test_a_watch_continues_with_the_token_of_a_line(proxy: str) -> None:
    lines = [json.loads(line) for line in watched(proxy, "--from-epoch", "0", "--format", "jsonl")]
    assert [(line["epoch"], line["key"], line["value"]) for line in lines[:2]] == [(0, "JFK", 71.06), (1, "JFK", 72.0)]
    assert watched(proxy, "--token", lines[1]["token"]) == watched(proxy, "--from-epoch", "2")


def test_mistakes_are_said_in_one_line(proxy: str) -> None:
    assert_one_line_error(run("watch", "nyc", "nothing", "JFK", "--proxy", proxy), "no queryable state")
    assert_one_line_error(run("watch", "nyc", "lastTemperature", "--token", "x", "--proxy", proxy), "token")
