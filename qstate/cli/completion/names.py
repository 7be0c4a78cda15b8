"""Looks up what completes an argument: jobs, states and keys at the proxy, profiles in their file, features.

Rules of this module: it never raises, and waits at most `PATIENCE_S` for all of a completion: nothing is a good answer
when there is no better one. Keys are looked up on request only, because that scans a state.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from qstate.cli.completion.engine import Candidate
from qstate.cli.connection import connection_of
from qstate.cli.output.formats import text_of
from qstate.cli.profiles import profile_names
from qstate.cli.queries.get import live_or_committed, state_types_of
from qstate.client import QueryableStateClient
from qstate.errors import QStateError
from qstate.installation import FEATURES
from qstate.keys import Column, ColumnType
from qstate.values.text_forms import key_form, parse_columns

__all__ = ["MOST_KEYS", "PATIENCE_S", "LiveNames"]

#: How long a person waits after the tabulator key, in seconds.
PATIENCE_S = 1.0
#: The most keys that are looked at.
MOST_KEYS = 50

#: The names under which commands have their job.
_JOBS = ("job", "use_job", "chosen_job")

_Look = Callable[[QueryableStateClient, argparse.Namespace, str], Iterable[Candidate]]


class LiveNames:
    """Asks the proxy that the arguments name. With `keys` also for keys.

    `inherit` adds to the arguments what a shell knows of its connection.
    """

    def __init__(self, *, keys: bool = False, inherit: Callable[[argparse.Namespace], None] | None = None) -> None:
        self._looks: dict[str, _Look] = {"JOB": _jobs, "STATE": _states}
        if keys:
            self._looks |= {"KEY": _keys, "COLUMN": _keys}
        self._inherit = inherit

    def of(self, placeholder: str, given: argparse.Namespace, incomplete: str) -> Iterable[Candidate]:
        """Candidates for the argument of a placeholder."""
        if placeholder == "FEATURE":
            return [Candidate(name) for name in FEATURES]
        if placeholder == "PROFILE":
            with suppress(QStateError):
                return [Candidate(name) for name in profile_names()]
        look = self._looks.get(placeholder)
        return () if look is None else _within(PATIENCE_S, lambda: self._ask(look, given, incomplete))

    def _ask(self, look: _Look, given: argparse.Namespace, incomplete: str) -> list[Candidate]:
        if self._inherit is not None:
            self._inherit(given)
        with connection_of(given).client(timeout_s=PATIENCE_S) as client:
            return list(look(client, given, incomplete))


def _within(seconds: float, ask: Callable[[], list[Candidate]]) -> list[Candidate]:
    """The answer, or nothing when there is none in time: a resolver of names keeps to no limit."""
    found: list[Candidate] = []

    def run() -> None:
        with suppress(QStateError, OSError):
            found.extend(ask())

    thread = threading.Thread(target=run, name="qstate-completion", daemon=True)
    thread.start()
    thread.join(seconds)
    return [] if thread.is_alive() else found


def _jobs(client: QueryableStateClient, given: argparse.Namespace, incomplete: str) -> Iterable[Candidate]:
    return [Candidate(name) for name in sorted(client.jobs())]


def _states(client: QueryableStateClient, given: argparse.Namespace, incomplete: str) -> Iterable[Candidate]:
    job = next(getattr(given, name) for name in _JOBS if hasattr(given, name))
    states = sorted(client.states(job), key=lambda state: str(state["name"]))
    return [Candidate(str(state["name"]), f"{state['kind']} of {state['value_type']}") for state in states]


def _keys(client: QueryableStateClient, given: argparse.Namespace, incomplete: str) -> Iterable[Candidate]:
    """The next column of keys that begin with the columns so far."""
    types = state_types_of(client, given.job, given.state).keys
    before = getattr(given, "key", None) or getattr(given, "column", None) or []
    if len(before) >= len(types):
        return []
    prefix = _prefix(before, types, incomplete)
    forms = live_or_committed(lambda isolation: _forms(client, given, prefix, isolation))
    columns = (form[len(before)] if isinstance(form, list) else form for form in forms)
    return [Candidate(text) for text in sorted(set(map(text_of, columns)))]


def _forms(client: QueryableStateClient, given: argparse.Namespace, prefix: Any, isolation: str) -> list[Any]:
    options: dict[str, Any] = {"limit": MOST_KEYS, "values": False, "isolation": isolation}
    with client.scan(given.job, given.state, prefix, **options) as scan:
        return [key_form(entry.key) for entry in islice(scan, MOST_KEYS)]


def _prefix(before: list[str], types: list[ColumnType], incomplete: str) -> Any:
    """What the server selects by: columns, or the beginning of the first one."""
    columns: tuple[Column, ...] = parse_columns(before, types)
    if columns:
        return columns
    if types[0] is ColumnType.STRING:
        return incomplete or None
    if types[0] is ColumnType.BINARY:
        with suppress(ValueError):
            return bytes.fromhex(incomplete[: len(incomplete) // 2 * 2]) or None
    return None
