"""Laws of memory: a state that is larger than memory, measured where nothing else is, in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from qstate.backends import Capability
from qstate_conformance.backend.child import Child
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

#: By the first size every buffer and cache of a usual size is full; what is needed after it grows with the state.
FIRST_MIB, LAST_MIB = 160, 416
#: A backend that holds everything needs more than a byte for a byte; one with bounded memory nearly nothing.
MOST_GROWTH = 0.35


@law("T13", "B17", "S6")
def test_memory_stays_bounded_while_a_large_map_and_list_are_read(subject: BackendSubject) -> None:
    """When a map and a list have grown by 256 MiB each, to read both one by one takes no more than a third of that."""
    if Capability.LARGER_THAN_MEMORY not in subject.capabilities:
        pytest.skip(f"{subject.name} does not claim larger_than_memory")
    sizes = {"first_mib": FIRST_MIB, "last_mib": LAST_MIB}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Child(subject, "read_large", Path(scratch) / "own", sizes) as child,
    ):
        first, last = child.says(240.0), child.says(240.0)
    for read, mib in ((first, FIRST_MIB), (last, LAST_MIB)):
        assert read["mib"] == mib and read["elements"] == read["entries"]
    more, memory = LAST_MIB - FIRST_MIB, last["peak_mib"] - first["peak_mib"]
    assert memory <= MOST_GROWTH * more, f"{memory:.0f} MiB more memory to read {more} MiB more, twice"


@law("B17", "N7", proves=[Capability.LARGER_THAN_MEMORY])
def test_memory_stays_bounded_while_the_state_grows(subject: BackendSubject) -> None:
    """While the state grows by 256 MiB and is scanned, the process's peak of memory grows by no more than a third."""
    sizes = {"first_mib": FIRST_MIB, "last_mib": LAST_MIB}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Child(subject, "grow", Path(scratch) / "own", sizes) as child,
    ):
        before, after, end = child.says(240.0), child.says(240.0), child.says()
    assert (end["missing"], end["unvisited"]) == (0, 0)
    state, memory = after["written_mib"] - before["written_mib"], end["peak_mib"] - before["peak_mib"]
    assert memory <= MOST_GROWTH * state, f"{memory:.0f} MiB more memory for {state:.0f} MiB more state"
