"""The law of everything at once: a job's whole life in any order of steps, against a plain dict."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis.stateful import run_state_machine_as_test

from qstate_conformance.backend.machine import BackendMachine
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import BackendSubject


@law(
    "B2", "B3", "B4", "B5", "B9", "B10", "B12", "B13", "B14", "R3", "R5", "R6", "T1", "T2", "T3", "T6", "T8", "T9",
    "Q1", "Q2", "Q3", "Q4", "Q6",
)  # fmt: skip
def test_every_life_of_a_job_leaves_what_a_dict_would(subject: BackendSubject) -> None:
    """Whatever a job writes, commits, undoes, loses and restores, in any order, the backend holds what a dict holds."""
    machine: Any = partial(BackendMachine, subject)  # hypothesis takes factories, and its types only classes
    run_state_machine_as_test(machine, settings=examples(1.0))
