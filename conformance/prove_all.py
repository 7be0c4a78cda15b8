"""Proves everything that comes with qstate: `python conformance/prove_all.py [--profile P] [--seed N] [--report DIR]`.

Rules of this program: it runs the command `qstate-conformance` as a third party does, once for each subject, and adds
nothing to its verdicts. A subject that cannot run here (no Node.js) is said to be missing, not passed over.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
NODE_CLIENT = HERE.parent / "examples" / "clients" / "node"
SUITE = (sys.executable, "-m", "qstate_conformance")
PYTHON_CLIENTS = {
    "qstate, synchronous": "qstate_conformance.client.python_driver",
    "qstate, asyncio": "qstate_conformance.client.python_async_driver",
}
TOKEN = "a token for the servers of this run"
STOP_TIMEOUT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove every subject; the result is 0 when all of them conform."""
    parser = argparse.ArgumentParser(description="Prove everything that comes with qstate.")
    parser.add_argument("--profile", default="ci", help="how hard to try (ci)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same examples (0)")
    parser.add_argument("--report", type=Path, default=Path("build/conformance"), help="where the reports go")
    options = parser.parse_args(arguments)
    settings = ("--profile", options.profile, "--seed", str(options.seed), "--report", str(options.report))
    verdicts: dict[str, str] = {}
    for backend in ("heap", "rocksdb", "sqlite"):
        verdicts[f"backend {backend}"] = _prove("backend", backend, *settings)
    with tempfile.TemporaryDirectory(prefix="qstate-conformance-") as scratch:
        _prove_servers(verdicts, settings, Path(scratch))
        for name, module in PYTHON_CLIENTS.items():
            command = (sys.executable, "-m", module)
            verdicts[f"client {name}"] = _prove("client", "--name", name, *settings, "--", *command)
        verdicts["client in JavaScript"] = _prove_node_client(settings, Path(scratch))
    print("\n" + "\n".join(f"{subject}: {verdict}" for subject, verdict in verdicts.items()))
    print(f"reports: {options.report}")
    return int(any(verdict.startswith("FAILED") for verdict in verdicts.values()))


def _prove(*arguments: str) -> str:
    print(f"\n$ qstate-conformance {' '.join(arguments)}", flush=True)
    status = subprocess.run([*SUITE, *arguments], check=False).returncode
    return "conforms" if status == 0 else f"FAILED with exit code {status}"


def _prove_servers(verdicts: dict[str, str], settings: Sequence[str], scratch: Path) -> None:
    """qstate's proxy and state servers, without a token and with one."""
    token_file = scratch / "token"
    token_file.write_text(TOKEN)
    for name, token in (("qstate", ()), ("qstate with a token", ("--token-file", str(token_file)))):
        with _serving(*token) as address:
            verdicts[f"server {name}"] = _prove("server", address, "--name", name, *token, *settings)


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


def _prove_node_client(settings: Sequence[str], scratch: Path) -> str:
    """The example client. Its packages are installed beside a copy, so that the checkout stays as it is."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return f"NOT RUN: {'node' if node is None else 'npm'} is not on the PATH; install Node.js 20 or newer"
    copy = scratch / "node"
    shutil.copytree(NODE_CLIENT, copy, ignore=shutil.ignore_patterns("node_modules"))
    if subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=copy, check=False).returncode != 0:
        # Without a registry nothing is known of the client; with one, its lock file is broken.
        reached = subprocess.run([npm, "view", "@msgpack/msgpack", "version"], cwd=copy, check=False).returncode == 0
        return "FAILED: npm could not install its packages" if reached else "NOT RUN: npm reaches no registry"
    return _prove("client", "--name", "JavaScript example", *settings, "--", node, str(copy / "driver.js"))


if __name__ == "__main__":
    sys.exit(main())
