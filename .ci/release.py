"""Build what a release consists of, and prove that it installs and works where nothing else is installed.

Rules of this program: it changes nothing outside its output folder and its own temporary folder, and uploads nothing.

    distributions    an sdist of each package, and a wheel made from that sdist
    check            `twine check --strict`: the index would take their metadata; nothing in a wheel that is no product
    installs         on each interpreter that is found: the client alone, then RocksDB, the suite and the SQLite example
    documentation    on the interpreter that runs this: the wheels, installed as the pages say, then the tutorial, the
                     gateway, the live page and SQL over live state, by the words of their pages
    bill of materials    the packages that `spark-qstate[all]` installs, as CycloneDX, with their hashes
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The folder of each distribution, and what the files of its wheel begin with.
DISTRIBUTIONS = {
    ".": ("qstate/", "pyspark_qstate/", "spark_qstate-"),
    "conformance": ("qstate_conformance/", "qstate_conformance-"),
    "examples/sqlite_backend": ("qstate_sqlite.py", "qstate_sqlite-"),
}
INTERPRETERS = ("3.10", "3.11", "3.12", "3.13")
#: All that a client installs.
OF_A_CLIENT = {"msgpack", "msgspec", "pip", "setuptools", "spark-qstate", "tomli", "xxhash"}
#: The pages whose first line that installs wheels brings what their commands need.
INSTALLING_PAGES = ("docs/how-to/install.md", "docs/how-to/gateway.md")
INSTALL_LINE = re.compile(r'^pip +install --find-links dist "spark-qstate\[.*$', re.MULTILINE)
#: The tests that act the pages out, what they need of the tree, and what they import beside the wheels.
PAGES_ACTED_OUT = (
    "tests/project/test_tutorial.py",
    "tests/project/test_documentation_runs.py::test_state_as_dataframe",
    "tests/gateway/test_how_to.py",
)
OF_THE_TREE = ("docs", "tests", "README.md", "pyproject.toml")
TEST_TOOLS = ("httpx", "hypothesis", "playwright", "pytest", "pytest-timeout")
#: A client before a server of the installed suite, as someone else's program would do it.
CLIENT_PROGRAM = """
import re, subprocess, sys
import qstate
from qstate import QueryableStateClient
command = ["qstate-conformance", "serve", "--backend", "rocksdb", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        address = re.search(r"127\\.0\\.0\\.1:(\\d+)", server.stdout.readline())
        with QueryableStateClient("127.0.0.1", int(address[1])) as client:
            assert client.jobs(), "the server has no job"
    finally:
        server.terminate()
print("qstate", qstate.__version__, "on", sys.version.split()[0], "reads a served state")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "release", help="where the files go")
    output: Path = parser.parse_args().output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    for folder in DISTRIBUTIONS:
        run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", output, ROOT / folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *output.iterdir())
    for beginnings, wheel in wheels(output):
        check_files(wheel, beginnings)
    found = dict(interpreters())
    missing = [version for version in INTERPRETERS if version not in found]
    for version, python in found.items():
        print(f"--- Python {version}: {python}", flush=True)
        with tempfile.TemporaryDirectory(prefix="qstate-release-") as place:
            check_install(python, Path(place), output)
    print("--- the documentation", flush=True)
    with tempfile.TemporaryDirectory(prefix="qstate-release-") as place:
        check_documentation(Path(place), output)
    write_bill(output)
    print(f"\n{output}: " + ", ".join(sorted(file.name for file in output.iterdir())))
    print(f"installed and run on Python {', '.join(found)}" + (f"; not found: {', '.join(missing)}" if missing else ""))


def run(*command: object, **settings: object) -> None:
    """Run a command; its failure ends this program."""
    subprocess.run([str(part) for part in command], check=True, **settings)  # type: ignore[call-overload]


def wheels(output: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """The wheel of each distribution, with what the names of its files may begin with."""
    for beginnings in DISTRIBUTIONS.values():
        (wheel,) = output.glob(f"{beginnings[-1]}*.whl")
        yield beginnings, wheel


def check_files(wheel: Path, beginnings: tuple[str, ...]) -> None:
    """Refuse a wheel with files of another package, or of the tests."""
    with zipfile.ZipFile(wheel) as files:
        strange = [name for name in files.namelist() if not name.startswith(beginnings) or "/tests/" in name]
    if strange:
        raise SystemExit(f"{wheel.name} has files that do not belong there: {', '.join(strange[:5])}")


def interpreters() -> Iterator[tuple[str, str]]:
    """The supported interpreters of this machine: on the PATH, or installed by pyenv."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in INTERPRETERS:
        candidates = [sys.executable] if version == own else []
        candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python")), reverse=True)
        candidates += filter(None, [shutil.which(f"python{version}")])
        for python in candidates:
            told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
            if told.returncode == 0 and re.match(rf"Python {re.escape(version)}\.", told.stdout):
                yield version, python
                break


def write_bill(output: Path) -> None:
    """The bill of materials of the wheel that was built."""
    client, *_ = (wheel for _, wheel in wheels(output))
    project = output / "pyproject.toml"
    version = client.name.split("-")[1]
    project.write_text((ROOT / "pyproject.toml").read_text().replace('dynamic = ["version"]', f'version = "{version}"'))
    locked = (ROOT / "locks" / "all.txt", "--pyproject", project, "--mc-type", "library", "--output-reproducible")
    run(sys.executable, "-m", "cyclonedx_py", "requirements", *locked, "-o", output / "spark-qstate.cdx.json")
    project.unlink()


def check_documentation(place: Path, output: Path) -> None:
    """Install the wheels as the pages say, and act pages out in a copy of the tree without its packages."""
    programs = make_environment(sys.executable, place)
    (place / "dist").symlink_to(output)
    for name in OF_THE_TREE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place / name)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PIP_QUIET": "1"}
    environment.pop("PYTHONPATH", None)
    for page in INSTALLING_PAGES:
        (line,) = INSTALL_LINE.findall((ROOT / page).read_text())
        run("bash", "-ec", line, cwd=place, env=environment)
    run(programs / "python", "-m", "pip", "install", *TEST_TOOLS, cwd=place, env=environment)
    where = "import qstate, sys; sys.exit('site-packages' not in qstate.__file__)"
    run(programs / "python", "-c", where, cwd=place, env=environment)
    run(programs / "python", "-m", "pytest", "-q", *PAGES_ACTED_OUT, cwd=place, env=environment)


def make_environment(python: str, place: Path) -> Path:
    """A fresh virtual environment; the directory of its programs."""
    run(python, "-m", "venv", place / "environment")
    return place / "environment" / "bin"


def check_install(python: str, place: Path, output: Path) -> None:
    """Install the wheels in a fresh environment, and use them outside the source tree."""
    programs = make_environment(python, place)
    pip = (programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    client, suite, example = (wheel for _, wheel in wheels(output))
    run(*pip, "install", client)
    listed = subprocess.run([*map(str, pip), "list", "--format", "freeze"], capture_output=True, text=True, check=True)
    more = {line.partition("==")[0].lower() for line in listed.stdout.split()} - OF_A_CLIENT
    if more:
        raise SystemExit(f"a client installs more than it needs: {', '.join(sorted(more))}")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(place)}
    run(programs / "qstate", "--version", cwd=place, env=environment)
    run(*pip, "install", f"{client}[rocksdb]", suite, example)
    run(*pip, "check")
    run(programs / "python", "-c", CLIENT_PROGRAM, cwd=place, env=environment)
    laws = ("--select", "backend.changes.*documented_bytes")
    run(programs / "qstate-conformance", "backend", "sqlite", *laws, cwd=place, env=environment)


if __name__ == "__main__":
    main()
