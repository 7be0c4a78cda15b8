"""Laws of Locate and Describe: which states exist, and who owns their key groups."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server.fixture import GAP, JOB, MAX_PARALLELISM, OWNED, STATES, State
from qstate_conformance.server.messages import Description, Location
from qstate_conformance.server.probes import located
from qstate_conformance.server.wire import DEADLINE_MS, connect
from qstate_conformance.subjects import ServerSubject


def _check_description(found: State, description: Any) -> None:
    expected = (found.name, found.kind, found.serializer, found.key_types)
    assert tuple(description[name] for name in ("name", "kind", "serializer", "key_types")) == expected, (
        f"P-DESC-1: {dict(description)} describes {expected}"
    )


@law("P-LOC-1", "P-LOC-2", "P-LOC-3", "P-MSG-3")
def test_a_location_names_the_owner_of_every_key_group(subject: ServerSubject) -> None:
    """The owners of a Location are in ascending order, do not overlap, and leave out the groups that have none."""
    with connect(subject) as session:
        for found in STATES:
            location = located(session, found.name)
            assert location.max_parallelism == MAX_PARALLELISM, f"{location.max_parallelism} key groups"
            owned = {group for group in range(MAX_PARALLELISM) if location.owner_of(group) is not None}
            expected = {group for start, stop in OWNED for group in range(start, stop)}
            assert owned == expected, f"P-LOC-2: {sorted(owned ^ expected)} of {found.name}"
            assert not owned & set(range(*GAP))


@law("P-DESC-1", "P-LOC-1")
def test_a_location_describes_the_state(subject: ServerSubject) -> None:
    """A Location describes its state with all nine names, as Describe does."""
    with connect(subject) as session:
        described = session.describe(JOB)
        assert isinstance(described, Description), f"{described} for a Describe"
        entries = {entry["name"]: entry for entry in described.entries}
        for found in STATES:
            location = located(session, found.name)
            _check_description(found, location.state)
            assert location.state == entries[found.name], f"P-DESC-1: {location.state}, but {entries[found.name]}"


@law("P-DESC-1")
def test_the_jobs_are_listed(subject: ServerSubject) -> None:
    """Describe of nil lists the jobs, each as a map with its name, the fixture's among them."""
    with connect(subject) as session:
        found = session.describe(None)
    assert isinstance(found, Description), f"{found} for a Describe"
    assert JOB in [entry.get("job") for entry in found.entries], f"P-DESC-1: {found.entries}"
    assert all("kind" not in entry for entry in found.entries), f"P-DESC-1: {found.entries}"


@law("P-DESC-1")
def test_the_states_of_a_job_are_listed(subject: ServerSubject) -> None:
    """Describe of a job lists its queryable states, each once and with all nine names."""
    with connect(subject) as session:
        found = session.describe(JOB)
    assert isinstance(found, Description), f"{found} for a Describe"
    names = [entry["name"] for entry in found.entries]
    assert len(set(names)) == len(names), f"P-DESC-1: a state twice among {names}"
    entries = dict(zip(names, found.entries, strict=True))
    assert {state.name for state in STATES} <= set(names), f"P-DESC-1: only {names}"
    for state in STATES:
        _check_description(state, entries[state.name])


@law("P-LOC-3", "P-LOC-1")
@examples(0.2)
@given(names=st.lists(st.sampled_from([state.name for state in STATES]), min_size=1, max_size=6))
def test_a_location_stays_while_nothing_moves(subject: ServerSubject, names: list[str]) -> None:
    """While no owner ends, a Location is the same on every connection."""
    with connect(subject) as one, connect(subject) as other:
        for name in names:
            first, second = one.locate(JOB, name, DEADLINE_MS), other.locate(JOB, name, DEADLINE_MS)
            assert isinstance(first, Location) and isinstance(second, Location), f"{first}, {second}"
            assert first[1:] == second[1:], f"P-LOC-3: {first} and {second}"
