"""What a run shall do: the subject, which laws, how hard, and from which seed.

Rules of this module: it decides which laws are meant and how a run is written as a command. It must not run
anything, nor know pytest.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version

import qstate_conformance
from qstate_conformance.laws import Area, Law
from qstate_conformance.outcomes import Run
from qstate_conformance.profiles import DEFAULT_PROFILE
from qstate_conformance.subjects import BackendSubject, ClientSubject, ServerSubject, Subject
from qstate_conformance.waivers import Waiver

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """A subject, and the laws to run against it.

    `selection` are ids of laws, globs over them (`backend.tables.*`) or ids of MUSTs (`T3`); empty means all.
    `arguments` are further arguments of the command line that belong to the subject, as they were given. `label` is
    how reports call the subject, where its name says little to others (an address, a path). The run stops when
    `maxfail` laws have failed.
    """

    subject: Subject
    selection: tuple[str, ...] = ()
    profile: str = DEFAULT_PROFILE
    seed: int = 0
    waivers: tuple[Waiver, ...] = ()
    arguments: tuple[str, ...] = ()
    label: str = ""
    maxfail: int | None = None

    @property
    def area(self) -> Area:
        return self.subject.area

    def selects(self, law: Law) -> bool:
        return not self.selection or any(_means(wanted, law) for wanted in self.selection)

    def selects_nothing(self, laws: Iterable[Law]) -> list[str]:
        """The entries of the selection that mean none of these laws."""
        known = list(laws)
        return [wanted for wanted in self.selection if not any(_means(wanted, law) for law in known)]

    def command(self, *laws: str) -> str:
        """The command line that runs these laws, or the plan's selection, on the subject again."""
        words = ["qstate-conformance", self.area]
        if not isinstance(self.subject, ClientSubject):
            words.append(self.subject.name)
        for wanted in laws or self.selection:
            words += ["--select", wanted]
        words += ["--profile", self.profile, "--seed", str(self.seed), *self.arguments]
        if self.maxfail is not None and not laws:
            words += ["--maxfail", str(self.maxfail)]
        if isinstance(self.subject, ClientSubject):
            words += ["--", *self.subject.command]
        return shlex.join(words)

    def run(self) -> Run:
        """The plan in the form of the reports."""
        return Run(
            area=self.area,
            subject=self.label or self.subject.name,
            profile=self.profile,
            seed=self.seed,
            selection=self.selection,
            command=self.command(),
            versions=self._versions(),
        )

    def _versions(self) -> dict[str, str]:
        found = {
            "qstate-conformance": qstate_conformance.__version__,
            "spark-qstate": _version("spark-qstate"),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "system": f"{platform.system()} {platform.machine()}",
        }
        if isinstance(self.subject, BackendSubject):
            found["backend class"] = f"{self.subject.backend.__module__}.{self.subject.backend.__qualname__}"
        if isinstance(self.subject, ServerSubject):
            found["token"] = "given" if self.subject.token is not None else "none"
        return found


def _means(wanted: str, law: Law) -> bool:
    return wanted in law.requirements or fnmatchcase(law.id, wanted)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "from a source tree"
