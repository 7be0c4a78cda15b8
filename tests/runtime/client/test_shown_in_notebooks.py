"""What notebooks show of views, handles and clients: escaped, and small whatever the values are."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.views import MOST_TEXT, ReadOnlyState, ReadOnlyValueState, ViewMaker
from tests.runtime.client.peer import Peer
from tests.runtime.client.test_typed_handles import typed

HOSTILE = "</td><script>alert(1)</script>"
MOST_BYTES = 60_000


def view(kind: str, value: Any) -> ReadOnlyState:
    return ViewMaker({"name": "s", "kind": kind, "serializer": "msgpack"}, {}).view(msgpack.packb(value), 7, "live")


def tags(html: str) -> set[str]:
    found: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            found.add(tag)

    Tags().feed(html)
    return found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("value", HOSTILE),
        ("value", {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}),
        ("list", [HOSTILE, {HOSTILE: 1}]),
        ("map", {HOSTILE: HOSTILE}),
        ("reducing", HOSTILE),
        ("aggregating", [HOSTILE]),
    ],
)
def test_values_are_escaped(kind: str, value: Any) -> None:
    html = view(kind, value)._repr_html_()
    assert tags(html) <= {"table", "caption", "tr", "th", "td"}
    assert "epoch 7, live" in html
    assert "script" in html


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("value", "x" * 1_000_000),
        ("list", list(range(100_000))),
        ("list", [[list(range(1000))] * 1000] * 60),
        ("map", {f"{key} {'x' * 1000}": "y" * 1000 for key in range(10_000)}),
        ("value", {f"{key}": list(range(100)) for key in range(10_000)}),
    ],
)
def test_a_large_value_makes_a_small_table(kind: str, value: Any) -> None:
    shown = view(kind, value)
    html = shown._repr_html_()
    assert len(html) < MOST_BYTES
    assert "..." in html
    text: list[str] = []  # as the printer of IPython takes it
    shown._repr_pretty_(SimpleNamespace(text=text.append), cycle=False)
    assert len(text[0]) <= MOST_TEXT and text[0].endswith("...") and repr(shown).startswith(text[0][:-3])


def test_a_value_that_cannot_be_read_shows_its_error() -> None:
    assert "expected float" in typed(ReadOnlyValueState[float], view("value", 3))._repr_html_()


def test_clients_and_handles_show_where_they_read() -> None:
    with Peer() as peer:
        address = "{}:{}".format(*peer.address)
        with QueryableStateClient(*peer.address) as client:
            assert repr(client) == f"<QueryableStateClient of {address}>"
            handle = client.state("job", HOSTILE, isolation="committed")
            assert repr(handle) == f"<StateHandle {HOSTILE!r} of job 'job', committed>"
            for shown in (client, handle):
                assert tags(shown._repr_html_()) <= {"table", "caption", "tr", "th", "td"}
        assert repr(client).endswith(", closed>")
        assert peer.requests == [], "nothing is asked for a display"

        async def look() -> None:
            async with await AsyncQueryableStateClient.connect(*peer.address) as client:
                assert repr(client) == f"<AsyncQueryableStateClient of {address}>"
                assert address in client._repr_html_()
                assert repr(client.state("job", "state")) == "<AsyncStateHandle 'state' of job 'job', live>"

        asyncio.run(look())
