"""Runs the laws of one area on a subject and gives the outcome.

Rules of this module: it starts pytest with the plugin, sheltered from whatever configuration, plugins and options
the surroundings have. It prints nothing; a listener hears of each law as it is done.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qstate_conformance
from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Outcome
from qstate_conformance.plan import Plan
from qstate_conformance.plugin import Session
from qstate_conformance.recording import Listener, Recording
from qstate_conformance.subjects import SubjectError

__all__ = ["SelectionError", "run"]

_CONFIGURATION = Path(__file__).with_name("suite.ini")
#: No terminal: the suite reports on its own. No cache: a run leaves nothing behind.
_PLUGINS = (
    "-p",
    "qstate_conformance.plugin",
    "-p",
    "_hypothesis_pytestplugin",
    "-p",
    "no:terminal",
    "-p",
    "no:cacheprovider",
)
_SURROUNDINGS = {"PYTEST_ADDOPTS": None, "PYTEST_PLUGINS": None, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class SelectionError(Exception):
    """A part of the selection matches no law."""


def run(plan: Plan, listener: Listener | None = None) -> Outcome:
    """Run the plan's laws against its subject.

    Raises `SelectionError`, or `SubjectError` for a client that does not start, before anything runs.
    """
    recording = Recording(plan, listener)
    session = Session({plan.area: recording}, own=True)
    package = f"{qstate_conformance.__name__}.{plan.area}"
    arguments = [*_PLUGINS, "-c", str(_CONFIGURATION), "--noconftest", "--pyargs", package]
    with _surroundings():
        status = pytest.main(arguments, plugins=[session])
    if recording.unknown:
        raise SelectionError(_no_law(plan, recording.unknown))
    if recording.unusable:
        raise SubjectError(recording.unusable)
    if status == pytest.ExitCode.INTERNAL_ERROR:
        recording.problem("pytest itself failed; its message is above")
    return recording.outcome()


def _no_law(plan: Plan, unknown: list[str]) -> str:
    ids = [law.id for law in find_laws(plan.area)]
    close = difflib.get_close_matches(unknown[0], ids, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    names = ", ".join(map(repr, unknown))
    return f"no {plan.area} law is meant by {names}{hint} `qstate-conformance list {plan.area}` prints all"


@contextmanager
def _surroundings() -> Iterator[None]:
    """A context without environment variables that change pytest's behaviour; it restores them at its end."""
    before = {name: os.environ.get(name) for name in _SURROUNDINGS}
    _set_environment(_SURROUNDINGS)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
