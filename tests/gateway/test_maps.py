"""Maps whose keys would be the same text: no entry of them is lost, whichever way it is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import json

from qstate.cli import main as cli
from qstate.descriptors import MapStateDescriptor, ValueStateDescriptor
from qstate.values.text_forms import namespace_of
from tests.gateway.event_stream import stream
from tests.gateway.page.served import ServedJob, serving
from tests.gateway.running_gateway import running_gateway

ENTRIES = {1: 0, "1": 1, b"1": 2, "b'1'": 3, ("1", 1): 4, "('1', 1)": 5, date(2020, 1, 2): 6, "2020-01-02": 7}
STATES = [
    MapStateDescriptor("map", int, map_key_type=object).queryable("visits"),
    ValueStateDescriptor("value", object).queryable("last"),
    MapStateDescriptor("named", int).queryable("named"),
]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The gateway's URL of the job's states, and the proxy."""
    job = ServedJob("nyc", STATES, tmp_path_factory.mktemp("served"))
    job.put(visits={"JFK": ENTRIES}, last={"JFK": [ENTRIES]}, named={"JFK": {"123": 1, "true": 2, "a": 3}})
    with serving(job) as served, running_gateway(served.proxy.address) as gateway:
        yield f"{gateway.url}/v1/jobs/nyc/states", "{}:{}".format(*served.proxy.address)


def entries_in(pairs: Any) -> dict[Any, Any]:
    return {namespace_of(key): value for key, value in pairs}


def test_in_an_answer(addresses: tuple[str, str]) -> None:
    url, _ = addresses
    assert entries_in(httpx.get(f"{url}/visits/value?key=JFK").json()["value"]) == ENTRIES
    (result,) = httpx.post(f"{url}/visits/values", json={"keys": ["JFK"]}).json()["results"]
    assert entries_in(result["value"]) == ENTRIES
    (entry,) = httpx.get(f"{url}/visits/entries").json()["entries"]
    assert entries_in(entry["value"]) == ENTRIES


def test_within_a_value(addresses: tuple[str, str]) -> None:
    url, _ = addresses
    (within,) = httpx.get(f"{url}/last/value?key=JFK").json()["value"]
    assert entries_in(within) == ENTRIES


def test_in_a_stream(tmp_path: Path) -> None:
    job = ServedJob("nyc", STATES, tmp_path)
    job.put(visits={"JFK": ENTRIES})
    job.put(visits={"JFK": ENTRIES})
    with serving(job) as served, running_gateway(served.proxy.address) as gateway:
        url = f"{gateway.url}/v1/jobs/nyc/states/visits/changes"
        with stream(url) as events:
            (change,) = next(events).data["changes"]
            assert entries_in(change["value"]) == ENTRIES
        with stream(f"{url}?from_epoch=1") as events:
            changes = next(events).data["changes"]
            assert {one["change"] for one in changes} == {"put_entry"}
            assert entries_in((one["map_key"], one["value"]) for one in changes) == ENTRIES


def test_in_a_dump_of_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ServedJob("nyc", STATES, tmp_path).put(visits={"JFK": ENTRIES})
    assert cli.main(["checkpoint", "dump", str(tmp_path / "checkpoint"), "--epoch", "0"]) == cli.SUCCESS
    lines = [json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert entries_in((one["map_key"], one["value"]) for one in lines) == ENTRIES


def test_on_the_command_line(addresses: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, proxy = addresses

    def printed(*arguments: str) -> list[Any]:
        assert cli.main([*arguments, "--proxy", proxy, "--format", "jsonl"]) == cli.SUCCESS
        return [json.decode(line) for line in capsys.readouterr().out.splitlines()]

    assert entries_in(*printed("get", "nyc", "visits", "JFK")) == ENTRIES
    (scanned,) = printed("scan", "nyc", "visits")
    assert entries_in(scanned["value"]) == ENTRIES
    (part,) = printed("get", "nyc", "visits", "JFK", "--entry", '{"binary": "31"}', "--entry", "1")
    assert entries_in(part) == {1: 0, b"1": 2}
    for name, value in (("123", 1), ('"123"', 1), ("true", 2), ("a", 3)):
        assert list(*map(dict.values, printed("get", "nyc", "named", "JFK", "--entry", name))) == [value]
    watched = printed("watch", "nyc", "visits", "--from-epoch", "0", "--until", "0")
    assert entries_in((one["map_key"], one["value"]) for one in watched) == ENTRIES
