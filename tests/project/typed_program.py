"""A program that reads typed state. `test_types_of_results` asks mypy what it sees in it."""

# ruff: noqa: B018, F821

from __future__ import annotations

from dataclasses import dataclass

from qstate import (
    AsyncQueryableStateClient,
    QueryableStateClient,
    ReadOnlyListState,
    ReadOnlyMapState,
    ReadOnlyValueState,
)


@dataclass
class Reading:
    temperature: float


def read(client: QueryableStateClient) -> None:
    last = client.state("alerts", "last", ReadOnlyValueState[Reading])
    reveal_type(last)
    reveal_type(last["JFK"].value().temperature)
    reveal_type(last.get("JFK"))
    reveal_type(last.get_many(["JFK"]))
    reveal_type(last.get_many(["JFK"], return_errors=True))
    reveal_type([entry.view.value() for entry in last.scan()])
    reveal_type(client.state("alerts", "jumps", ReadOnlyListState[float])["JFK"].get())
    reveal_type(client.state("alerts", "counts", ReadOnlyMapState[str, int])["JFK"].entries())
    reveal_type(client.state("alerts", "last"))


async def read_later(client: AsyncQueryableStateClient) -> None:
    last = client.state("alerts", "last", ReadOnlyValueState[float])
    reveal_type(await last.get("JFK"))
    reveal_type([entry.view async for entry in last.scan()])
    view = await last.get("JFK")
    if view is not None:
        view.value().temperature
