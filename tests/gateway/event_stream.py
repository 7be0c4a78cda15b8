"""Reads server-sent events as a browser does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT_S = 20.0


@dataclass
class ServerSentEvent:
    """One event. `id` is that of the stream so far, which a browser sends when it comes back."""

    name: str
    id: str
    data: Any


def events_in(lines: Iterator[str]) -> Iterator[ServerSentEvent]:
    """The events in the lines of a stream; comments and the time to come back are left out."""
    name, data, last = "message", [], ""
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            last = value
        elif not line and data:
            yield ServerSentEvent(name, last, json.loads("\n".join(data)))
            name, data = "message", []


@contextmanager
def stream(url: str, **options: Any) -> Iterator[Iterator[ServerSentEvent]]:
    """The events at a URL."""
    with httpx.Client(timeout=TIMEOUT_S) as client, client.stream("GET", url, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events_in(answer.iter_lines())
