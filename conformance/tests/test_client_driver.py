"""Programs that break the line protocol fail in time, with a clear error, and leave nothing behind."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate_conformance.client import driver as driver_module
from qstate_conformance.client.driver import FEATURES, Driver, DriverFailure, driver_for, end_drivers
from qstate_conformance.client.frames import LOCATE
from qstate_conformance.client.peer import JOB, STATE, Peer
from qstate_conformance.client.requests import Request
from qstate_conformance.client.tagged import TAGS
from qstate_conformance.client.unobservable import UNOBSERVABLE
from qstate_conformance.laws import find_laws

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "client-driver.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "how-to" / "write-a-client.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")

HELLO = '{"id": 1, "ok": {"protocol": 1, "client": "a program", "features": []}}'
SAYS_HELLO = f"input(); print({HELLO!r}, flush=True); "


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    yield
    end_drivers()


def says(line: str) -> str:
    """A program that answers the first line with this one."""
    return f"input(); print({line!r}, flush=True); input()"


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise SystemExit(3)", "has exited with code 3"),
        ("import sys; sys.exit('no such module')", "no such module"),
        ("print('Listening on port 9069', flush=True); input()", "no JSON: b'Listening"),
        ("print('[1]', flush=True); input()", "no answer"),
        ("print('{\"id\": 1}', flush=True); input()", "no answer"),
        ('input(); print(\'{"id": 7, "ok": {}}\', flush=True); input()', "was not asked"),
        (
            'input(); print(\'{"id": 1, "ok": {"protocol": 2, "features": []}}\', flush=True); input()',
            "protocol is 2, expected 1",
        ),
        (SAYS_HELLO.replace("[]", '["telepathy"]') + "input()", "telepathy"),
        (says('{"id": [1], "ok": {}}'), "no answer"),
        (says("[" * 100_000), "no JSON"),
        (says('{"id": 1, "error": "not ready"}'), "no answer"),
        (says('{"id": 1, "ok": {}, "error": null}'), "no answer"),
        (says('{"id": 1, "error": {"code": "NOT_READY"}}'), "answered hello with the error {'code': 'NOT_READY'}"),
        (says('{"id": 1, "error": {"code": "INVALID"}}'), "answered hello with the error {'code': 'INVALID'}"),
    ],
)
def test_program_that_is_no_driver_is_reported_as_such(text: str, why: str) -> None:
    with pytest.raises(DriverFailure, match=re.escape(why)) as raised:
        Driver(program(text))
    assert sys.executable in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("protocol", "true", "protocol is True, expected 1"),
        ("protocol", "1.0", "protocol is 1.0, expected 1"),
        ("protocol", '"1"', "protocol is '1', expected 1"),
        ("protocol", "null", "protocol is None, expected 1"),
        ("client", "7", "client is 7, expected the name and version"),
        ("client", "null", "client is None, expected the name and version"),
        ("client", '""', "client is '', expected the name and version"),
        ("features", '"async"', "features is 'async', expected an array of"),
        ("features", "null", "features is None, expected an array of"),
        ("features", '{"async": true}', "features is {'async': True}, expected an array of"),
        ("features", '[["async"]]', "features is [['async']], expected an array of"),
        ("features", "[7]", "features is [7], expected an array of"),
        ("features", "[null, {}]", "features is [None, {}], expected an array of"),
    ],
)
def test_a_description_of_another_form_names_the_field(field: str, value: str, why: str) -> None:
    fields = {"protocol": "1", "client": '"a program"', "features": "[]", field: value}
    described = ", ".join(f'"{name}": {given}' for name, given in fields.items())
    with pytest.raises(DriverFailure, match=re.escape(why)):
        Driver(program(says(f'{{"id": 1, "ok": {{{described}}}}}')))


def test_program_that_does_not_exist_is_reported() -> None:
    with pytest.raises(DriverFailure, match="cannot be started"):
        Driver(("/no/such/program",))


def test_a_program_that_does_not_answer_fails_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "GRACE_S", 0.1)
    with driver_for(program(SAYS_HELLO + "input(); input()")) as driver:
        began = time.monotonic()
        with pytest.raises(DriverFailure, match=r"gave no answer to .*close"):
            driver.start("close", 0.1, client=1).outcome()
        assert time.monotonic() - began < 5
        assert driver.broken


def test_a_program_that_dies_fails_all_that_it_was_asked() -> None:
    with driver_for(program(SAYS_HELLO + "input(); input(); raise SystemExit(9)")) as driver:
        pending = [driver.start("close", 20.0, client=number) for number in range(2)]
        for operation in pending:
            with pytest.raises(DriverFailure, match="has exited with code 9"):
                operation.outcome()
        with pytest.raises(DriverFailure, match="has exited with code 9"):
            driver.start("close", 1.0)


def test_a_broken_program_is_started_again() -> None:
    command = program(SAYS_HELLO + "input(); raise SystemExit(9)")
    with driver_for(command) as first, pytest.raises(DriverFailure):
        first.start("close", 5.0).outcome()
    with driver_for(command) as second:
        assert second is not first
        assert not second.broken


def test_a_program_that_ignores_the_end_of_its_input_is_killed_with_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "EXIT_S", 0.1)
    stubborn = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(child.pid, file=sys.stderr, flush=True); " + SAYS_HELLO + "time.sleep(600)"
    )
    driver = Driver(program(stubborn))
    child = int(str(driver.failed("was asked for its child")).split()[-1])
    driver.end()
    assert _is_gone(child)


def _is_gone(pid: int) -> bool:
    """Whether a process has ended. It may be a zombie: the process that adopted it may not have waited for it yet."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
    return False


def test_an_error_that_no_client_may_give_breaks_the_law() -> None:
    crash = '{"id": 2, "error": {"code": "CRASHED", "message": "KeyError: 5"}}'
    command = program(SAYS_HELLO + f"input(); print({crash!r}, flush=True); input()")
    with driver_for(command) as driver, pytest.raises(AssertionError, match="CRASHED: KeyError: 5"):
        driver.start("get", 5.0).outcome()


def test_a_peer_leaves_no_thread_when_its_client_stays() -> None:
    with Peer() as peer, driver_for((sys.executable, "-m", "qstate_conformance.client.python_driver")) as driver:
        client = driver.open(peer.address)
        assert client.get("key").value == "key"


def test_a_peer_that_closes_answers_what_it_still_has() -> None:
    # Its threads may be at work on a request while it closes; an error there would be laid to the client.
    look_up = Request(0.0, 0, b"", (LOCATE, 5, 1000, JOB, STATE))
    with Peer() as peer:
        answers = list(peer.honest(look_up))
    assert answers and list(peer.honest(look_up)) == answers


@pytest.mark.parametrize("module", ["python_driver", "python_async_driver"])
def test_no_law_is_skipped_for_the_clients_that_come_with_qstate(module: str) -> None:
    with driver_for((sys.executable, "-m", f"qstate_conformance.client.{module}")) as driver:
        assert driver.features == frozenset(FEATURES)


def test_the_page_has_every_feature_and_every_tag() -> None:
    assert [feature for feature in FEATURES if f"| `{feature}` |" not in PAGE] == []
    assert [tag for tag in TAGS if tag not in PAGE] == []


def test_the_guide_has_every_group_of_laws() -> None:
    assert {f"client.{law.group}.*" for law in find_laws("client")} == set(
        re.findall(r"^\| `(client\.\w+\.\*)`", GUIDE, re.M)
    )


def test_every_rule_is_checked_or_listed_as_unobservable() -> None:
    rules = set(re.findall(r"^- \*\*(P-[A-Z]+-\d+)\*\*", PROTOCOL, re.M))
    cited = {area: {rule for law in find_laws(area) for rule in law.requirements} for area in ("client", "server")}
    assert rules - cited["client"] - cited["server"] == set(UNOBSERVABLE) - cited["server"]
    assert not cited["client"] & set(UNOBSERVABLE)
