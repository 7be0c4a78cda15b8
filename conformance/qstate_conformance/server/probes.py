"""What many laws ask: a question with a known answer, the owners of a state, and whether a server is still whole.

Rules of this module: questions and their answers on the fixture. It makes no frames.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import count
from random import Random
from typing import TypeVar

from qstate_conformance.codes import Type
from qstate_conformance.key_groups import group_of
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import JOB, LIMITS, LIVE_EPOCH, MAX_PARALLELISM, Entry, State
from qstate_conformance.server.messages import Location, Owner, Values, Violation
from qstate_conformance.server.packing import pairs_of
from qstate_conformance.server.wire import DEADLINE_MS, Session, connect
from qstate_conformance.subjects import ServerSubject

__all__ = [
    "KNOWN",
    "TEMPERATURE",
    "ask_known",
    "await_room",
    "check_answer",
    "check_each",
    "check_known",
    "check_untouched",
    "located",
    "many_keys",
    "near_texts",
    "owner_sessions",
    "target_of",
]

Case = TypeVar("Case")

TEMPERATURE = (JOB, "temperature")
#: The question whose answer shows that all is well.
KNOWN = Entry("JFK", next(entry.contents for entry in fixture.state("temperature").entries if entry.key == "JFK"))


def target_of(state: State) -> tuple[str, str]:
    """How a proxy is asked for a state."""
    return JOB, state.name


def ask_known(session: Session) -> int:
    """Ask the known question; gives the request's id."""
    return session.ask(Type.GET, DEADLINE_MS, TEMPERATURE, None, {}, (KNOWN.key,))


def check_known(session: Session, number: int) -> None:
    """See that the answer is the known one."""
    found = session.answer(number)
    if not isinstance(found, Values) or (found.epochs, found.results) != ((LIVE_EPOCH,), (KNOWN.contents,)):
        raise Violation(f"P-BROKEN-3: {found} for a key whose value is {KNOWN.contents!r} of epoch {LIVE_EPOCH}")


def check_untouched(subject: ServerSubject, *sessions: Session) -> None:
    """See that connections that were open all the while, and a new one, are served as if nothing had happened."""
    for session in sessions:
        check_known(session, ask_known(session))
    with connect(subject) as fresh:
        check_known(fresh, ask_known(fresh))


def await_room(subject: ServerSubject, places: int = 16) -> None:
    """Wait until a server that had many connections has noticed that they are closed; it must, in time."""
    with ExitStack() as stack:
        for _ in range(places):
            stack.enter_context(connect(subject))


def check_each(cases: Mapping[str, Case], check: Callable[[Case], None]) -> None:
    """Check every case of a table, and name all that fail, not the first one only."""
    found = []
    for name, case in cases.items():
        try:
            check(case)
        except AssertionError as exc:
            found.append(f"{name}: {exc}")
    if found:
        raise Violation(f"{len(found)} of {len(cases)} cases\n" + "\n".join(found))


def check_answer(state: State, entry: Entry, answer: bytes | int | None) -> None:
    """See that an answer is the entry's, byte for byte; the entries of a map may come in any order."""
    expected = state.answer_of(entry)
    where = f"{state.name}[{entry.key!r}] in {entry.namespace!r}"
    if not isinstance(answer, bytes):
        raise Violation(f"P-GET-1: {answer} for {where}, which holds {expected.hex()}")
    same = sorted(pairs_of(answer)) == sorted(pairs_of(expected)) if state.kind == "map" else answer == expected
    if not same:
        raise Violation(f"P-VALUE-1: {answer.hex()} for {where}, which holds {expected.hex()}")


def located(session: Session, name: str) -> Location:
    """Where a state of the fixture is."""
    found = session.locate(JOB, name)
    if not isinstance(found, Location):
        raise Violation(f"P-REQ-2: {found} for a Locate of {name}")
    return found


def near_texts(text: str) -> set[str]:
    """Texts that a careless comparison takes for this one: it minds no case, no space, no end, no Unicode form."""
    near = {text.swapcase(), text.lower(), text.upper(), text.casefold(), text.strip(), text[:-1], text + text[-1:]}
    near |= {f" {text}", f"{text} ", f"{text}\n", f"{text}\0", f"\ufeff{text}"}
    near |= {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    return {found for found in near if found and found != text}


def many_keys(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    """As many keys of the state `distance` as one Get may have, all with an owner in these ranges of key groups.

    In no order. Some of them have values and are repeated; the others occur once.
    """
    groups = {group for start, stop in ranges for group in range(start, stop)}
    held = [entry.key for entry in fixture.state("distance").entries if entry.namespace is None]
    mine = [key for key in held if type(key) is int and 0 <= key < 1000 and _group_of(key) in groups]
    absent = (key for key in count(1000) if key not in held and _group_of(key) in groups)
    draw = Random(LIMITS.max_keys)
    return [draw.choice(mine) if draw.random() < 0.5 else next(absent) for _ in range(LIMITS.max_keys)]


@lru_cache(None)
def _group_of(key: int) -> int:
    return group_of(key, MAX_PARALLELISM)


@contextmanager
def owner_sessions(subject: ServerSubject, name: str) -> Iterator[list[tuple[Owner, Session]]]:
    """A session with each owner of a state."""
    with connect(subject) as proxy:
        owners = located(proxy, name).owners
    sessions: list[tuple[Owner, Session]] = []
    try:
        for owner in owners:
            sessions.append((owner, connect(subject, (owner.host, owner.port))))
        yield sessions
    finally:
        for _, session in sessions:
            session.close()
