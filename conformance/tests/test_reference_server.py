"""The reference server holds the fixture, keeps every law, and ends cleanly; what it counts adds up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qstate.keys import key_group, key_identity
from qstate.runtime.control.statistics import InMemoryStatistics, StatisticsSnapshot
from qstate_conformance.codes import Code, Type
from qstate_conformance.corpus import value_of
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.server import fixture, wire
from qstate_conformance.server.messages import Failure, Values
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, ask_known, check_known
from qstate_conformance.server.reference_server import reference_server
from qstate_conformance.subjects import ServerSubject

PATIENCE_S = 20.0


# The other two pairs are those of prove_all.py.
@pytest.mark.parametrize(("backend", "token"), [("heap", fixture.TOKEN), ("rocksdb", None)])
def test_the_reference_server_keeps_every_law(backend: str, token: bytes | None) -> None:
    with reference_server(backend, token=token) as running:
        outcome = run(Plan(ServerSubject(*running.address, token), profile="dev"))
    broken = [f"{law.law}: {law.message}" for law in outcome.laws if law.verdict is Verdict.FAILED]
    assert not broken and not outcome.problems, "\n".join([*broken, *outcome.problems])
    skipped = {law.law for law in outcome.laws if law.verdict is Verdict.SKIPPED}
    # Each of these laws is about one of the two kinds of server.
    of_tokens = {"server.handshake.a_wrong_token_or_none_is_refused", "server.handshake.every_bit_of_a_token_counts"}
    of_none = {"server.handshake.a_server_that_wants_no_token_ignores_it"}
    soak = {law.id for law in find_laws("server") if law.soak}
    assert skipped == (of_tokens if token is None else of_none) | soak


# --- the command ---------------------------------------------------------------------------------------------------


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], ServerSubject]]:
    """The command `qstate-conformance serve` in a process of its own."""
    command = [sys.executable, "-m", "qstate_conformance", "serve", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), f"{line!r} {process.stderr.read() if process.stderr else ''}"
        host, port = line.removeprefix("listening on ").strip().rsplit(":", 1)
        yield process, ServerSubject(host, int(port))
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_command_serves_until_it_is_stopped(number: signal.Signals) -> None:
    with serving() as (process, subject):
        session = wire.connect(subject)
        check_known(session, ask_known(session))
        process.send_signal(number)
        session.receive_close_notice(Code.SHUTTING_DOWN)
        session.close()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_the_command_takes_a_backend_and_a_token(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_bytes(fixture.TOKEN + b"\n")
    with serving("--backend", "rocksdb", "--token-file", str(secret)) as (_, subject):
        with wire.connect(ServerSubject(subject.host, subject.port, fixture.TOKEN)) as session:
            check_known(session, ask_known(session))
        with wire.Stream((subject.host, subject.port)) as stream:
            stream.send(wire.hello())
            stream.receive_close_notice(Code.UNAUTHENTICATED)


# --- the fixture ---------------------------------------------------------------------------------------------------


def test_the_printed_fixture_says_what_the_laws_expect() -> None:
    printed: dict[str, Any] = json.loads(fixture.as_json())
    assert printed["job"] == fixture.JOB and value_of(printed["token"]) == fixture.TOKEN
    assert (printed["committed_epoch"], printed["live_epoch"]) == (fixture.COMMITTED_EPOCH, fixture.LIVE_EPOCH)
    states = {found["name"]: found for found in printed["states"]}
    assert states.keys() == {found.name for found in fixture.STATES}
    for found in fixture.STATES:
        entries = states[found.name]["entries"]
        assert value_of(states[found.name]["homeless_key"]) == found.homeless
        for entry, expected in zip(entries, found.entries, strict=True):
            assert (value_of(entry["key"]), value_of(entry["namespace"])) == (expected.key, expected.namespace)
            assert value_of(entry["contents"]) == expected.contents
            assert value_of(entry["answer"]) == found.answer_of(expected)
            assert entry["group"] == key_group(expected.key, fixture.MAX_PARALLELISM)
        for before, held in zip(states[found.name]["before"], found.before, strict=True):
            assert (value_of(before["key"]), value_of(before["namespace"])) == (held.key, held.namespace)
            assert value_of(before["contents"]) == held.contents
            assert (before["answer"] is None) == (held.contents is None)


def test_each_kind_of_state_differs_between_what_is_live_and_what_is_committed() -> None:
    assert {found.kind for found in fixture.STATES if found.before} == {found.kind for found in fixture.STATES}
    for found in fixture.STATES:
        live = {(entry.namespace, entry.key): entry.contents for entry in found.entries}
        committed = {(entry.namespace, entry.key): entry.contents for entry in found.committed}
        places = live.keys() | committed.keys()
        differing = {place for place in places if live.get(place) != committed.get(place)}
        assert differing == {(before.namespace, before.key) for before in found.before}


def test_every_entry_of_the_fixture_has_an_owner_and_a_key_of_its_own() -> None:
    owned = {group for start, stop in fixture.OWNED for group in range(start, stop)}
    assert owned | set(range(*fixture.GAP)) == set(range(fixture.MAX_PARALLELISM))
    for found in fixture.STATES:
        # True and 1 are equal in Python, and not the same namespace.
        places = [(key_identity(entry.namespace), key_identity(entry.key)) for entry in found.entries]
        assert len(set(places)) == len(places)
        assert (key_identity(None), key_identity(found.absent)) not in places
        assert {group_of(entry.key, fixture.MAX_PARALLELISM) for entry in (*found.entries, *found.before)} <= owned
        assert group_of(found.absent, fixture.MAX_PARALLELISM) in owned
        assert group_of(found.homeless, fixture.MAX_PARALLELISM) not in owned


def test_the_fixture_has_every_kind_of_state_and_of_key() -> None:
    assert {found.kind for found in fixture.STATES} == {"value", "list", "map", "reducing", "aggregating"}
    assert {column for found in fixture.STATES for column in found.key_types} == {
        *("string", "binary", "bigint", "boolean", "date", "timestamp", "decimal(38,2)")
    }
    own = {found.kind for found in fixture.STATES if found.serializer == fixture.OWN_SERIALIZER}
    assert own >= {"value", "list", "map"}
    namespaces = {type(entry.namespace) for found in fixture.STATES for entry in found.entries}
    assert namespaces == {type(None), str, int, tuple, bytes, bool, Decimal}


# --- what it counts ------------------------------------------------------------------------------------------------


def settled(statistics: InMemoryStatistics) -> StatisticsSnapshot:
    """The counts when every connection is gone."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := statistics.snapshot()).connections:
        assert time.monotonic() < deadline, "the server still counts connections that are closed"
        time.sleep(0.005)
    return found


def test_statistics_add_up() -> None:
    statistics = InMemoryStatistics()
    homeless = fixture.state("temperature").homeless
    with reference_server(statistics=statistics) as running:
        subject = ServerSubject(*running.address)
        with wire.connect(subject) as session, wire.connect(subject) as broken:
            assert statistics.snapshot().connections == 2
            for _ in range(10):
                check_known(session, ask_known(session))
            assert isinstance(session.get(TEMPERATURE, "JFK", "N14228", "Zürich"), Values)
            session.locate(*TEMPERATURE)
            session.ping()
            assert isinstance(session.get(("unknown", "job"), "JFK"), Failure)
            assert isinstance(session.get(TEMPERATURE, homeless, deadline_ms=20), Failure)
            assert session.refused(pack((Type.GET, 900, 1000, TEMPERATURE, None, {}, ())), 900) == Code.MALFORMED
            broken.send(wire.frame(b"\xc1"))
            broken.receive_close_notice(Code.MALFORMED)
        found = settled(statistics)
    assert found.connections_accepted == 2
    # Unsound requests never become requests; they and broken streams are counted by their code alone.
    assert (found.requests, found.successes, found.keys) == (14, 12, 15)
    assert found.failures == {Code.UNKNOWN_JOB: 1, Code.UNKNOWN_KEY_GROUP_LOCATION: 1, Code.MALFORMED: 2}
    assert found.requests == found.successes + sum(found.failures.values()) - found.failures[Code.MALFORMED]
    assert sum(found.durations) == found.successes and found.duration_s > 0


def test_statistics_of_overload_add_up() -> None:
    statistics = InMemoryStatistics()
    share = fixture.LIMITS.max_requests_per_connection
    fields: tuple[Any, ...] = (200, TEMPERATURE, None, {}, (fixture.state("temperature").homeless,))
    codes = []
    with reference_server(statistics=statistics) as running, ExitStack() as stack:
        subject = ServerSubject(*running.address)
        sessions = [stack.enter_context(wire.connect(subject)) for _ in range(3)]
        for session in sessions:
            numbers = [session.next_id() for _ in range(share)]
            session.send(b"".join(session.request(Type.GET, number, *fields) for number in numbers))
        for session in sessions:
            codes += [getattr(session.answer(number + 1), "code", None) for number in range(share)]
        stack.close()
        found = settled(statistics)
    assert found.requests == found.keys == 3 * share
    assert found.failures == {code: codes.count(code) for code in set(codes)}
    assert found.failures[Code.OVERLOADED] == 3 * share - fixture.LIMITS.max_requests


def test_the_page_of_the_fixture_gives_its_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "conformance-fixture.md").read_text(encoding="utf-8")
    for name in fixture.Limits.__slots__:
        assert f"| `{name}` | {getattr(fixture.LIMITS, name)} |" in page
    for name in json.loads(fixture.as_json()):
        assert name == "about" or f"`{name}`" in page
