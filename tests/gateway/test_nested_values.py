"""Values nested deeper than Python can write as JSON: a typed failure of that value alone, wherever it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qstate.client import QueryableStateClient
from qstate.descriptors import ValueStateDescriptor
from qstate.serializers import MessagePackSerializer
from tests.gateway.event_stream import stream
from tests.gateway.page.served import Served, ServedJob, serving
from tests.gateway.running_gateway import running_gateway
from tests.gateway.test_reads import problem

DEPTH = 1000
DEEP = "a list in a list in a list"


class NestedLists(MessagePackSerializer):
    """Writes lists nested deep for the value DEEP, as another program's MessagePack may have them."""

    def dumps(self, value: Any) -> bytes:
        return b"\x91" * DEPTH + b"\x01" if value == DEEP else super().dumps(value)


@pytest.fixture
def usual_stack() -> Iterator[None]:
    """Python's own limit of recursion. The command line raises it for its process, and so do tests of it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def served(usual_stack: None, tmp_path: Path) -> Iterator[tuple[str, Served]]:
    """The URL of a state with a deep and another value, and what serves it."""
    job = ServedJob("nyc", [ValueStateDescriptor("last", object, serializer=NestedLists()).queryable("last")], tmp_path)
    job.put(last={"deep": DEEP, "JFK": [1]})
    with serving(job) as found, running_gateway(found.proxy.address) as gateway:
        yield f"{gateway.url}/v1/jobs/nyc/states/last", found


def is_said(found: dict[str, Any]) -> None:
    assert (found["code"], found["status"]) == ("UNSUPPORTED", 501)
    assert "nested too deep to be written as JSON" in found["detail"]


def test_value_is_refused_with_a_reason(served: tuple[str, Served]) -> None:
    url, _ = served
    is_said(problem(httpx.get(f"{url}/value?key=deep"), 501, "UNSUPPORTED"))
    assert httpx.get(f"{url}/value?key=JFK").json()["value"] == [1]


def test_one_key_of_many_is_refused(served: tuple[str, Served]) -> None:
    url, _ = served
    results = httpx.post(f"{url}/values", json={"keys": ["deep", "JFK"]}).json()["results"]
    is_said(results[0]["error"])
    assert results[1]["value"] == [1]
    entries = {one["key"]: one for one in httpx.get(f"{url}/entries").json()["entries"]}
    is_said(entries["deep"]["error"])
    assert entries["JFK"]["value"] == [1]


@pytest.mark.parametrize("begin", ["", "?from_epoch=0"])
def test_one_change_of_a_stream_is_refused(served: tuple[str, Served], begin: str) -> None:
    url, _ = served
    with stream(f"{url}/changes{begin}") as events:
        changes = {one["key"]: one for one in next(events).data["changes"]}
    is_said(changes["deep"]["error"])
    assert "value" not in changes["deep"]
    assert changes["JFK"]["value"] == [1]


def test_client_of_the_query_port_reads_it(served: tuple[str, Served]) -> None:
    with QueryableStateClient(*served[1].proxy.address) as client:
        found = client.get("nyc", "last", "deep").contents()
    for _ in range(DEPTH):
        (found,) = found
    assert found == 1
