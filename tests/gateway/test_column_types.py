"""Keys and namespaces of every type, over HTTP and through a proxy: each is found by its text, and keeps its type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from qstate.client import QueryableStateClient
from qstate.keys import Column, ColumnType, check_column
from tests.gateway.event_stream import stream
from tests.gateway.page.served import TEMPERATURE, ServedJob, serving
from tests.gateway.running_gateway import STATE, running_gateway

#: By type: two columns, the text of the first, and its JSON in a key and in a namespace.
COLUMNS: list[tuple[Any, Any, str, Any, Any]] = [
    ("12", "13", "12", "12", "12"),
    (b"\x00\xff", b"\x01", "00ff", "00ff", {"binary": "00ff"}),
    (12, 13, "12", 12, 12),
    (True, False, "true", True, True),
    (date(2020, 1, 2), date(2020, 1, 3), "2020-01-02", "2020-01-02", {"date": "2020-01-02"}),
    (
        datetime(2020, 1, 2, tzinfo=timezone.utc),
        datetime(2020, 1, 3, tzinfo=timezone.utc),
        "2020-01-02T00:00:00Z",
        "2020-01-02T00:00:00+00:00",
        {"timestamp": "2020-01-02T00:00:00+00:00"},
    ),
    (Decimal("1.50"), Decimal("2.50"), "1.5", "1.50", {"decimal": "1.50"}),
]


@dataclass
class Asked:
    """A state whose keys are of a column and a number, in namespaces of the column's type."""

    url: str
    proxy: tuple[str, int]
    column: Column
    text: str
    key: Any
    namespace: Any

    def found(self, path: str, **parameters: Any) -> Any:
        return httpx.get(f"{self.url}/{path}", params=parameters).json()


@pytest.fixture(scope="module", params=COLUMNS, ids=lambda columns: type(columns[0]).__name__)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    column, other, text, key, namespace = request.param
    kind = check_column(column)
    directory = tmp_path_factory.mktemp("served")
    job = ServedJob("nyc", [TEMPERATURE], directory, key_types=(kind, ColumnType.BIGINT), namespace_types=(kind,))
    job.put_in(column, lastTemperature={(column, 5): 1.5, (other, 5): 3.5})
    job.put_in(other, lastTemperature={(column, 5): 2.5})
    with serving(job) as served, running_gateway(served.proxy.address) as gateway:
        yield Asked(f"{gateway.url}{STATE}", served.proxy.address, column, text, key, namespace)


def test_a_value_is_found_by_texts(asked: Asked) -> None:
    found = asked.found("value", key=[asked.text, "5"], namespace=asked.text)
    assert (found["key"], found["namespace"], found["value"]) == ([asked.key, 5], asked.namespace, 1.5)


def test_entries_are_selected_by_texts(asked: Asked) -> None:
    (found,) = asked.found("entries", column=asked.text, namespace=asked.text)["entries"]
    assert (found["key"], found["namespace"], found["value"]) == ([asked.key, 5], asked.namespace, 1.5)
    assert asked.found("count", column=asked.text) == {"count": 2}


def test_changes_are_selected_by_texts(asked: Asked) -> None:
    query = urlencode({"column": asked.text, "namespace": asked.text, "from_epoch": 0})
    with stream(f"{asked.url}/changes?{query}") as events:
        (found,) = next(events).data["changes"]
    assert (found["key"], found["namespace"], found["value"]) == ([asked.key, 5], asked.namespace, 1.5)


def test_changes_keep_their_types_through_a_proxy(asked: Asked) -> None:
    with (
        QueryableStateClient(*asked.proxy, direct=False) as client,
        client.subscribe(
            "nyc", "lastTemperature", prefix=(asked.column,), namespace=asked.column, from_epoch=0
        ) as changes,
    ):
        (found,) = next(iter(changes))
    assert (found.key, found.namespace) == ((asked.column, 5), asked.column)
    assert type(found.namespace) is type(asked.column)
