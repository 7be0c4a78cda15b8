"""The example client in JavaScript conforms, and its command line reads from a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from qstate_conformance.client.driver import end_drivers
from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.server import fixture
from qstate_conformance.server.reference_server import reference_server
from qstate_conformance.subjects import ClientSubject

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients" / "node"
INSTALL_S = 120

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="needs Node 20 and npm"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its one dependency."""
    directory = tmp_path_factory.mktemp("node")
    copy = shutil.copytree(EXAMPLE, directory / "client", ignore=shutil.ignore_patterns("node_modules"))
    done = _npm(copy, "ci", "--no-audit", "--no-fund")
    if done.returncode and _npm(copy, "view", "@msgpack/msgpack", "version").returncode:
        pytest.skip("npm reaches no registry")
    assert done.returncode == 0, done.stderr
    return copy


def _npm(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["npm", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_S, check=False)


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    yield
    end_drivers()


def test_node_client_conforms(installed: Path) -> None:
    outcome = run(Plan(ClientSubject(("node", str(installed / "driver.js"))), profile="dev"))
    assert {law.law: law.message for law in outcome.laws if law.verdict is Verdict.FAILED} == {}
    assert outcome.exit_code == 0
    soak = {law.id for law in find_laws("client") if law.soak}
    skipped = {law.law for law in outcome.laws if law.verdict is Verdict.SKIPPED}
    assert {law.split(".")[1] for law in skipped - soak} == {"reached", "routing", "scans", "tls"}


def test_the_lock_file_names_no_registry() -> None:
    locked = json.loads((EXAMPLE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all("resolved" not in package for package in locked.values())
    assert all("integrity" in package for name, package in locked.items() if name)


def test_node_command_line_reads_from_a_real_server(installed: Path) -> None:
    state = fixture.state("temperature")
    entry = next(entry for entry in state.entries if entry.key == "JFK" and entry.namespace is None)
    assert isinstance(entry.contents, bytes)
    with reference_server() as server:
        assert _printed(installed, server.address, state.name, "JFK") == f"{msgpack.unpackb(entry.contents)}\n"
        assert _printed(installed, server.address, state.name, str(state.absent)) == "nothing\n"
        failed = _asked(installed, server.address, "no-such-state", "JFK")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "UNKNOWN_STATE" in failed.stderr


def _printed(installed: Path, address: tuple[str, int], state: str, key: str) -> str:
    done = _asked(installed, address, state, key)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _asked(installed: Path, address: tuple[str, int], state: str, key: str) -> subprocess.CompletedProcess[str]:
    command = ["node", str(installed / "get.js"), f"{address[0]}:{address[1]}", fixture.JOB, state, key]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
