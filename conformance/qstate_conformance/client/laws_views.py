"""Read-only views: a result is a copy, and nothing that looks like a change of it is offered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.peer import Peer, state_map
from qstate_conformance.client.stage import answering_gets, client_of
from qstate_conformance.client.strategies import values
from qstate_conformance.client.tagged import differs
from qstate_conformance.laws import law
from qstate_conformance.packing import Pairs, pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

#: For each kind a state with contents at several depths.
_INSIDE = Pairs((("list", [1, [2, 3], {"a": [4]}]), ("map", {"b": {"c": [5]}}), ("bytes", b"\x00\xff")))
CONTENTS: dict[str, Any] = {
    "value": _INSIDE,
    "reducing": [[1, 2], {"a": [3]}],
    "aggregating": {"mean": 2.5, "of": [1, 4]},
    "list": [1, "two", [3, [4]], {"five": [5]}, b"six"],
    "map": Pairs((("EWR", 3), ("JFK", [1, [2], b"x"]), (("a", 1), {"b": [2]}))),
}


def _mutated(subject: ClientSubject, kind: str, contents: Any) -> tuple[Outcome, Outcome]:
    """The outcome of the driver's attempts on a view, and of a get after them."""
    with Peer(states=[state_map(kind=kind)]) as peer:
        answering_gets(peer, lambda request: [frames.values(request.id, [pack(contents)])])
        with client_of(subject, peer) as client:
            first = client.get("key", keep=True)
            assert first.found, first
            return client.mutate(first.body["view"]), client.get("key")


def _attempts(outcome: Outcome) -> Iterator[dict[str, Any]]:
    attempts = outcome.body.get("attempts")
    assert isinstance(attempts, list), f"mutate reports no attempts: {outcome}"
    yield from attempts


@law("P-GET-10")
def test_every_mutator_of_a_view_refuses(subject: ClientSubject) -> None:
    """Every operation of a view that looks like a change refuses, for every kind of state."""
    for kind, contents in CONTENTS.items():
        for attempt in _attempts(_mutated(subject, kind, contents)[0]):
            if attempt["on"] == "the view":
                assert attempt["refused"], f"the view of a {kind} state lets {attempt['do']} happen"


@law("P-GET-10")
def test_what_is_inside_a_view_refuses_too(subject: ClientSubject) -> None:
    """Containers that a view hands out refuse every change, or are copies; the view reads as before, at every depth."""
    for kind, contents in CONTENTS.items():
        mutated, _ = _mutated(subject, kind, contents)
        for attempt in _attempts(mutated):
            where = f"{attempt['on']} in a {kind} state"
            assert attempt["refused"] or attempt.get("copy"), f"{where} lets {attempt['do']} happen"
        wrong = differs(contents, mutated.body["value"])
        assert wrong is None, f"after all attempts, of a {kind} state {wrong}"


@law("P-GET-10")
@examples(0.3)
@given(kind=st.sampled_from(["value", "reducing", "aggregating", "list"]), inner=st.lists(values, max_size=4))
def test_no_attempt_changes_what_is_read(subject: ClientSubject, kind: str, inner: list[Any]) -> None:
    """After all attempts to change it, the view reads as before, and so does a later get."""
    attempts, later = _mutated(subject, kind, inner)
    assert not attempts.failed, attempts
    for reading in (attempts.body["value"], later.value):
        wrong = differs(inner, reading)
        assert wrong is None, wrong
