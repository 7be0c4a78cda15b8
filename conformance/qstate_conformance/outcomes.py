"""What a run gave: the verdict on each law, on each capability and on the whole.

Rules of this module: plain data and the rules that judge it, to and from JSON. It must not know pytest, nor how a
report looks. The rules, in one place:

    a law that fails fails the run, unless a waiver names it
    a waiver that names no law, or a law that passes, fails the run
    a claimed capability that no passed law proved fails the run (of a whole area; a selection proves what it can)
    a run that left laws out, or ended before its last one, is partial: it may fail, and never conforms
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from qstate.backends.contract import Capability
from qstate_conformance.laws import Law
from qstate_conformance.waivers import Waiver

__all__ = [
    "INTERRUPTED",
    "USAGE",
    "CapabilityOutcome",
    "LawOutcome",
    "Outcome",
    "Run",
    "Verdict",
    "capability_outcomes",
    "capability_problems",
    "judge",
    "waiver_problems",
]

#: Exit codes beside 0 (conforms) and 1 (does not).
USAGE = 2
INTERRUPTED = 130


class Verdict(Enum):
    """The outcome of a law."""

    PASSED = "passed"
    FAILED = "failed"
    WAIVED = "waived"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class LawOutcome:
    """The outcome of one law.

    `message`: for a failure what was wrong, with the shrunk program; `detail`: the whole traceback. `reason`: why it
    was skipped or waived. `reproduction`: the command that runs this law alone, for what did not pass.
    """

    law: str
    text: str
    requirements: tuple[str, ...]
    verdict: Verdict
    seconds: float = 0.0
    message: str = ""
    detail: str = ""
    reason: str = ""
    link: str = ""
    reproduction: str = ""


@dataclass(frozen=True)
class CapabilityOutcome:
    """One capability that qstate knows: whether the subject claims it, and the laws that proved it by passing."""

    name: str
    meaning: str
    claimed: bool
    proved_by: tuple[str, ...]

    @property
    def proved(self) -> bool:
        return bool(self.proved_by)


@dataclass(frozen=True)
class Run:
    """What was run, with all that is needed to run it again."""

    area: str
    subject: str
    profile: str
    seed: int
    selection: tuple[str, ...] = ()
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A run and its outcome.

    `problems` are the broken rules of the run itself, one sentence each. `partial` says how much of its area the run
    was, and is empty for a run of all laws.
    """

    run: Run
    laws: tuple[LawOutcome, ...]
    capabilities: tuple[CapabilityOutcome, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False
    partial: str = ""

    def of(self, verdict: Verdict) -> list[LawOutcome]:
        return [law for law in self.laws if law.verdict is verdict]

    @property
    def exit_code(self) -> int:
        if self.of(Verdict.FAILED) or self.problems:
            return 1
        return INTERRUPTED if self.interrupted else 0

    @property
    def conforms(self) -> bool:
        return self.exit_code == 0 and not self.partial

    def by_requirement(self) -> dict[str, list[LawOutcome]]:
        """The laws that check each MUST."""
        found: dict[str, list[LawOutcome]] = {}
        for law in self.laws:
            for requirement in law.requirements:
                found.setdefault(requirement, []).append(law)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the JSON report has it."""
        data = asdict(self)
        for law, written in zip(self.laws, data["laws"], strict=True):
            written["verdict"] = law.verdict.value
        return data | {"conforms": self.conforms}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        return cls(
            run=Run(**{**data["run"], "selection": tuple(data["run"]["selection"])}),
            laws=tuple(
                LawOutcome(**{**law, "verdict": Verdict(law["verdict"]), "requirements": tuple(law["requirements"])})
                for law in data["laws"]
            ),
            capabilities=tuple(
                CapabilityOutcome(**{**entry, "proved_by": tuple(entry["proved_by"])}) for entry in data["capabilities"]
            ),
            problems=tuple(data["problems"]),
            seconds=data["seconds"],
            interrupted=data["interrupted"],
            partial=data["partial"],
        )


def judge(laws: Iterable[LawOutcome], waivers: Sequence[Waiver]) -> tuple[LawOutcome, ...]:
    """The outcomes with the waivers applied: a waived law that failed is waived; other outcomes stay."""
    reasons = {waiver.law: waiver for waiver in waivers}
    return tuple(
        _waived(law, reasons[law.law]) if law.verdict is Verdict.FAILED and law.law in reasons else law for law in laws
    )


def _waived(law: LawOutcome, waiver: Waiver) -> LawOutcome:
    return LawOutcome(
        **{**vars(law), "verdict": Verdict.WAIVED, "reason": waiver.reason, "link": waiver.link},
    )


def waiver_problems(waivers: Sequence[Waiver], known: Iterable[str], laws: Sequence[LawOutcome]) -> list[str]:
    """Waivers without effect: those of no law, and those of laws that pass."""
    known_ids, passed = set(known), {law.law for law in laws if law.verdict is Verdict.PASSED}
    return [
        *(
            f"the waiver of {w.law} names no law; see `qstate-conformance list`"
            for w in waivers
            if w.law not in known_ids
        ),
        *(f"the waiver of {w.law} is not needed: the law passes; remove it" for w in waivers if w.law in passed),
    ]


def capability_outcomes(
    claimed: Iterable[Capability], laws: Iterable[Law], outcomes: Sequence[LawOutcome]
) -> tuple[CapabilityOutcome, ...]:
    """For each capability, the passed laws that prove it."""
    passed = {outcome.law for outcome in outcomes if outcome.verdict is Verdict.PASSED}
    provers = [found for found in laws if found.id in passed]
    claims = frozenset(claimed)
    return tuple(
        CapabilityOutcome(
            name=capability.name.lower(),
            meaning=capability.value,
            claimed=capability in claims,
            proved_by=tuple(found.id for found in provers if capability in found.proves),
        )
        for capability in Capability
    )


def capability_problems(capabilities: Iterable[CapabilityOutcome]) -> list[str]:
    """Claimed capabilities that no law proved."""
    return [
        f"the capability {entry.name} is claimed, and no law that passed proves it"
        for entry in capabilities
        if entry.claimed and not entry.proved
    ]
