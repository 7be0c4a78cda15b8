"""The example client in JavaScript conforms, and its command line reads from a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qstate_conformance.client import frames
from qstate_conformance.client.driver import end_drivers
from qstate_conformance.client.peer import Peer, Reply
from qstate_conformance.client.requests import Request
from qstate_conformance.codes import Type
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import find_laws
from qstate_conformance.outcomes import Verdict
from qstate_conformance.packing import pack
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.server import fixture
from qstate_conformance.server.reference_server import reference_server
from qstate_conformance.subjects import ClientSubject

EXAMPLE = Path(__file__).parents[2] / "examples" / "clients" / "node"
INSTALL_S = 120
#: How long the batches of a subscription may take to come.
FOLLOW_S = 30

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
    assert {law.split(".")[1] for law in skipped - soak} == {"reached", "routing", "tls"}


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


_SCAN = """
import { Client } from "./client.js";
const [host, port, job, state, start, stop] = process.argv.slice(1);
const client = new Client(host, Number(port));
const keyGroups = [Number(start), Number(stop)];
const scanned = [];
let cursor = null;
for (;;) {
  const scan = client.scan(job, state, { keyGroups, limit: 2, cursor });
  const before = scanned.length;
  for await (const { key, view } of scan) scanned.push([key, view.value()]);
  cursor = scan.cursor;
  if (scanned.length === before) break;
}
const counted = await client.count(job, state, { keyGroups });
const selected = [];
for await (const { key } of client.scan(job, state, { keyGroups, prefix: "J", values: false })) selected.push(key);
console.log(JSON.stringify({ scanned, counted, selected }));
client.close();
"""


def test_node_client_scans_a_real_server_two_keys_at_a_time(installed: Path) -> None:
    state = fixture.state("temperature")
    with reference_server() as server:
        for start, stop in fixture.OWNED:
            held = [entry for entry in state.entries if start <= group_of(entry.key, fixture.MAX_PARALLELISM) < stop]
            held.sort(
                key=lambda entry: (group_of(entry.key, fixture.MAX_PARALLELISM), pack(entry.namespace), pack(entry.key))
            )
            arguments = [*map(str, server.address), fixture.JOB, state.name, str(start), str(stop)]
            command = ["node", "--input-type=module", "-e", _SCAN, *arguments]
            done = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert found["counted"] == len(found["scanned"]) == len(held)
            for entry, (key, value) in zip(held, found["scanned"], strict=True):
                assert key == entry.key
                expected = msgpack.unpackb(entry.contents, strict_map_key=False)  # type: ignore[arg-type]
                assert value == expected or not isinstance(expected, str | int)
            assert found["selected"] == [entry.key for entry in held if str(entry.key).startswith("J")]


def test_node_client_follows_the_changes_of_a_real_server(installed: Path) -> None:
    position = json.dumps([[0, fixture.MAX_PARALLELISM, fixture.OLDEST_EPOCH]])
    changes = [one for one in fixture.CHANGES if fixture.OLDEST_EPOCH <= one.epoch <= fixture.COMMITTED_EPOCH]
    epochs = sorted({one.epoch for one in changes})
    with reference_server() as server:
        batches = _followed(installed, server.address, fixture.JOB, fixture.HISTORY, len(epochs), position)
        assert [batch["epoch"] for batch in batches] == epochs
        for batch in batches:
            expected = [(one.key, one.value) for one in changes if one.epoch == batch["epoch"]]
            found = [(one["key"], one.get("value")) for one in batch["changes"]]
            assert _last(found) == {key: value and msgpack.unpackb(value) for key, value in _last(expected).items()}
        # From the position of any batch on, the later ones come.
        again = _followed(installed, server.address, fixture.JOB, fixture.HISTORY, 1, batches[0]["position"])
        assert again == batches[1:2]


def _last(changes: list[tuple[Any, Any]]) -> dict[str, Any]:
    return {str(key): value for key, value in changes}


def test_node_client_begins_with_a_snapshot_of_each_owner(installed: Path) -> None:
    """Two owners of different epochs; one splits in two within an epoch, then its changes are compacted."""
    polls: list[tuple[int, int, int, bytes]] = []
    scans = {0: _owner_page("a", 4, 64), 64: _owner_page("b", 9, 128), 96: _owner_page("c", 30, 128)}
    answers = {
        (0, 5, b""): _changes(64, 6, b"", [[5, 1, None, ["a"], None, [pack(2)]]]),
        # Within epoch 11. Then the owner has fewer key groups, so the epoch begins again for both parts.
        (64, 10, b""): _changes(
            128, 11, b"x", [[10, 2, None, ["b"], None, None], [11, 1, None, ["b"], None, [pack(0)]]]
        ),
        (64, 11, b"x"): _changes(96, 12, b"", [[11, 1, None, ["b2"], None, [pack(0)]]]),
        (64, 11, b""): _changes(96, 12, b"", [[11, 1, None, ["b"], None, [pack(3)]]]),
        (96, 11, b""): lambda request: [frames.failure(request.id, frames.CODES["COMPACTED"])],
    }

    def answer(request: Request) -> Iterable[Reply]:
        if request.type == frames.SCAN:
            return scans[request.groups[0]](request)
        if request.type == frames.POLL:
            start, stop, epoch, place = request.elements[7:11]
            polls.append((start, stop, epoch, place))
            # Those that are not answered wait for a change.
            found = answers.pop((start, epoch, place), None)
            return [] if found is None else found(request)
        return peer.honest(request)

    with Peer(answer) as peer:
        batches = _followed(installed, peer.address, "job", "state", 6)
        assert peer.faults == []
    told = [(one["snapshot"], one["keyGroups"], one["epoch"], one["changes"]) for one in batches]
    assert [one for one in told if one[1] == [0, 64]] == [
        (True, [0, 64], 4, [{"operation": "put", "key": "a", "namespace": None, "value": "a"}]),
        (False, [0, 64], 5, [{"operation": "put", "key": "a", "namespace": None, "value": 2}]),
    ]
    assert [one for one in told if one[1] != [0, 64]] == [
        (True, [64, 128], 9, [{"operation": "put", "key": "b", "namespace": None, "value": "b"}]),
        (False, [64, 128], 10, [{"operation": "delete", "key": "b", "namespace": None}]),
        *sorted(
            [
                (False, [64, 96], 11, [{"operation": "put", "key": "b", "namespace": None, "value": 3}]),
                (True, [96, 128], 30, [{"operation": "put", "key": "c", "namespace": None, "value": "c"}]),
            ],
            key=told.index,
        ),
    ]
    assert json.loads(batches[-1]["position"]) == [[0, 64, 6], [64, 96, 12], [96, 128, 31]]


def _owner_page(key: str, epoch: int, stop: int) -> Callable[[Request], list[Reply]]:
    """All of an owner's keys on one page."""

    def page(request: Request) -> list[Reply]:
        return [frames.page(request.id, {key: pack(key)}, stop, epoch=epoch)]

    return page


def _changes(stop: int, next_epoch: int, position: bytes, runs: list[Any]) -> Callable[[Request], list[Reply]]:
    fields = (frames.FINGERPRINT, stop, next_epoch, position, next_epoch, runs)
    return lambda request: [frames.message(Type.CHANGES, request.id, *fields)]


def _followed(
    installed: Path, address: tuple[str, int], job: str, state: str, number: int, *position: str
) -> list[dict[str, Any]]:
    """The first batches of a subscription."""
    command = ["node", str(installed / "follow.js"), f"{address[0]}:{address[1]}", job, state, *position]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        given_up = threading.Timer(FOLLOW_S, process.kill)
        given_up.start()
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = [process.stdout.readline() for _ in range(number)]
            assert all(lines), f"{lines}, then {process.stderr.read()}"
        finally:
            given_up.cancel()
            process.kill()
    return [json.loads(line) for line in lines]


def _printed(installed: Path, address: tuple[str, int], state: str, key: str) -> str:
    done = _asked(installed, address, state, key)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _asked(installed: Path, address: tuple[str, int], state: str, key: str) -> subprocess.CompletedProcess[str]:
    command = ["node", str(installed / "get.js"), f"{address[0]}:{address[1]}", fixture.JOB, state, key]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
