"""Proves everything that comes with qstate: `python conformance/prove_all.py [--profile P] [--seed N] [--report DIR]`.

Rules of this program: it runs the command `qstate-conformance` as a third party does, once for each subject, and adds
nothing to its verdicts. A subject that cannot run here (no Node.js) is said to be missing, not passed over. Subjects
run side by side (`--at-once`), each in processes of its own; what each had to say is printed whole, in the order of
the list, and a line on standard error says when one begins and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from qstate_conformance.reports.directory import write_reports

HERE = Path(__file__).parent
NODE_CLIENT = HERE.parent / "examples" / "clients" / "node"
SUITE = (sys.executable, "-m", "qstate_conformance")
PYTHON_CLIENTS = {
    "qstate, synchronous": "qstate_conformance.client.python_driver",
    "qstate, asyncio": "qstate_conformance.client.python_async_driver",
}
TOKEN = "a token for the servers of this run"
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Proof:
    """What became of a subject, and all that was printed on the way."""

    verdict: str
    output: str

    @property
    def failed(self) -> bool:
        return self.verdict.startswith("FAILED")


class Prover(Protocol):
    """Proves one subject; the settings are those of `qstate-conformance` that all subjects share."""

    def __call__(self, settings: Sequence[str], scratch: Path) -> Proof: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove every subject; the result is 0 when all of them conform."""
    parser = argparse.ArgumentParser(description="Prove everything that comes with qstate.")
    parser.add_argument("--profile", default="ci", help="how hard to try (ci)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same examples (0)")
    parser.add_argument("--report", type=Path, default=Path("build/conformance"), help="where the reports go")
    parser.add_argument("--at-once", type=int, default=2, help="how many subjects run side by side (2)")
    options = parser.parse_args(arguments)
    settings = ("--profile", options.profile, "--seed", str(options.seed), "--report", str(options.report))
    proofs = _prove_all(_subjects(), settings, options.at_once)
    # Each subject has made the matrix of the reports that it found; two that end together may miss one another's.
    write_reports([], options.report)
    print("\n" + "\n".join(f"{subject}: {proof.verdict}" for subject, proof in proofs.items()))
    print(f"reports: {options.report}")
    return int(any(proof.failed for proof in proofs.values()))


def _subjects() -> dict[str, Prover]:
    """Everything that comes with qstate, in the order of the output."""
    subjects: dict[str, Prover] = {}
    for backend in ("rocksdb", "sqlite", "heap"):
        subjects[f"backend {backend}"] = partial(_prove_backend, backend)
    subjects["server qstate"] = partial(_prove_server, "qstate", "heap", None)
    subjects["server qstate with a token"] = partial(_prove_server, "qstate with a token", "rocksdb", TOKEN)
    for name, module in PYTHON_CLIENTS.items():
        subjects[f"client {name}"] = partial(_prove_client, name, (sys.executable, "-m", module))
    subjects["client in JavaScript"] = _prove_node_client
    return subjects


def _prove_all(subjects: Mapping[str, Prover], settings: Sequence[str], at_once: int) -> dict[str, Proof]:
    """The proofs of all subjects, printed as soon as those before them are."""
    proofs: dict[str, Proof] = {}
    with tempfile.TemporaryDirectory(prefix="qstate-conformance-") as scratch, ThreadPoolExecutor(at_once) as pool:
        started = {
            subject: pool.submit(_told, subject, prover, settings, Path(scratch))
            for subject, prover in subjects.items()
        }
        try:
            for subject, proving in started.items():
                proofs[subject] = proving.result()
                print(proofs[subject].output, flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return proofs


def _told(subject: str, prover: Prover, settings: Sequence[str], scratch: Path) -> Proof:
    """The proof, with a line of progress before and after it."""
    _tell(f"{subject}: begins")
    begun = time.monotonic()
    proof = prover(settings, scratch)
    _tell(f"{subject}: {proof.verdict} ({time.monotonic() - begun:.0f} s)")
    return proof


def _tell(line: str) -> None:
    # In one piece: two subjects may report at the same moment.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _prove(*arguments: str) -> Proof:
    ran = _run([*SUITE, *arguments])
    verdict = "conforms" if ran.returncode == 0 else f"FAILED with exit code {ran.returncode}"
    return Proof(verdict, f"\n$ qstate-conformance {' '.join(arguments)}\n{ran.stdout}")


def _run(command: Sequence[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; what it wrote to either stream is kept, in order, for others write meanwhile."""
    return subprocess.run(
        command,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _prove_backend(name: str, settings: Sequence[str], scratch: Path) -> Proof:
    return _prove("backend", name, *settings)


def _prove_client(name: str, command: Sequence[str], settings: Sequence[str], scratch: Path) -> Proof:
    return _prove("client", "--name", name, *settings, "--", *command)


def _prove_server(name: str, backend: str, token: str | None, settings: Sequence[str], scratch: Path) -> Proof:
    """qstate's proxy and state servers over this backend, without a token or with one."""
    options: tuple[str, ...] = ()
    if token is not None:
        file = scratch / "token"
        file.write_text(token)
        options = ("--token-file", str(file))
    with _serving("--backend", backend, *options) as address:
        return _prove("server", address, "--name", name, *options, *settings)


@contextlib.contextmanager
def _serving(*arguments: str) -> Iterator[str]:
    """The fixture's server, in a process of its own; gives its address."""
    with subprocess.Popen([*SUITE, "serve", *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            if not said.startswith("listening on "):
                raise SystemExit(f"the server did not start: {said!r}")
            yield said.split()[-1]
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


def _prove_node_client(settings: Sequence[str], scratch: Path) -> Proof:
    """The example client. Its packages are installed beside a copy, so that the checkout stays as it is."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing = "node" if node is None else "npm"
        return Proof(f"NOT RUN: {missing} is not on the PATH; install Node.js 20 or newer", "")
    copy = scratch / "node"
    shutil.copytree(NODE_CLIENT, copy, ignore=shutil.ignore_patterns("node_modules"))
    installed = _run([npm, "ci", "--no-audit", "--no-fund"], copy)
    if installed.returncode != 0:
        # Without a registry nothing is known of the client; with one, its lock file is broken.
        reached = _run([npm, "view", "@msgpack/msgpack", "version"], copy).returncode == 0
        verdict = "FAILED: npm could not install its packages" if reached else "NOT RUN: npm reaches no registry"
        return Proof(verdict, installed.stdout)
    return _prove_client("JavaScript example", (node, str(copy / "driver.js")), settings, scratch)


if __name__ == "__main__":
    sys.exit(main())
