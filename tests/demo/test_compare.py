"""The comparison finds what differs and counts what it compared, through the real client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qstate.client import QueryableStateClient
from qstate.demo.compare import compare
from qstate.demo.expected import Expectation
from qstate.errors import UnknownState
from tests.project.served_job import CONTENTS, JOB, serve


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryableStateClient]:
    with serve(tmp_path_factory.mktemp("served")) as address, QueryableStateClient(*address) as client:
        yield client


def test_equal_states_of_every_kind_match(client: QueryableStateClient) -> None:
    wanted = [
        Expectation(state, namespace, {**values, "LGA": None})
        for state, spaces in CONTENTS.items()
        if state != "byPlace"
        for namespace, values in spaces.items()
    ]
    comparison = compare(client, JOB, wanted)
    assert comparison.mismatches == []
    assert comparison.total == 2 * len(wanted) == 12
    assert comparison.keys["lastTemperature"] == 4


@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        ("lastTemperature", 71.07),
        ("lastTemperature", None),
        ("visits", {"LAX": 2}),
        ("visits", {"LAX": 2, "SFO": 1, "BOS": 1}),
        ("visits", {"LAX": 2, "SFO": True}),
        ("lastDelays", [3, -1]),
        ("lastDelays", [-1, 3, 0]),
        ("totalDistance", 12_345.0),
        ("meanDelay", 2.5000000000000004),
    ],
)
def test_every_difference_is_a_mismatch(client: QueryableStateClient, state: str, wrong: Any) -> None:
    (mismatch,) = compare(client, JOB, [Expectation(state, None, {"JFK": wrong})]).mismatches
    assert (mismatch.key, mismatch.expected, mismatch.found) == ("JFK", wrong, CONTENTS[state][None]["JFK"])
    assert str(mismatch).startswith(f"{state}['JFK']: expected {wrong!r}, found ")


def test_value_where_none_is_expected_is_a_mismatch(client: QueryableStateClient) -> None:
    (mismatch,) = compare(client, JOB, [Expectation("lastTemperature", "2013-07-18", {"JFK": None})]).mismatches
    assert "in '2013-07-18'" in str(mismatch)


def test_keys_beyond_one_request_are_all_compared(client: QueryableStateClient) -> None:
    keys: dict[str, Any] = {f"airport {number}": None for number in range(1_234)}
    assert compare(client, JOB, [Expectation("lastDelays", None, keys)]).total == 1_234


def test_state_that_is_not_served_is_the_clients_error(client: QueryableStateClient) -> None:
    with pytest.raises(UnknownState):
        compare(client, JOB, [Expectation("noSuchState", None, {"JFK": 1})])
