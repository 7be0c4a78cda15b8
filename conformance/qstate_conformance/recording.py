"""What happened to each law of a run, as it happens, and the outcome in the end.

Rules of this module: it gets what ran and how that ended, in plain words, and applies the rules of `outcomes`. It
must not know pytest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from qstate_conformance.laws import AREAS, Law, find_laws
from qstate_conformance.outcomes import (
    CapabilityOutcome,
    LawOutcome,
    Outcome,
    Verdict,
    capability_outcomes,
    capability_problems,
    judge,
    waiver_problems,
)
from qstate_conformance.plan import Plan
from qstate_conformance.profiles import SOAKING

__all__ = ["Listener", "Recording"]


class Listener:
    """Gets the events of a run as they happen. No method has to be overridden."""

    def begins(self, law: Law, total: int) -> None:
        """A law is about to run; its number, and the number of all."""

    def ended(self, outcome: LawOutcome, done: int, total: int) -> None:
        """A law has ended; its number, and the number of all."""


class Recording:
    """The laws of one area and what became of them.

    A law has one case, or several when its test is parametrized: it is kept when every case keeps it.
    """

    def __init__(self, plan: Plan, listener: Listener | None = None) -> None:
        self.plan = plan
        self.interrupted = False
        #: It ended before its last law, because enough had failed.
        self.stopped = False
        #: Why the subject cannot be used: nothing runs then.
        self.unusable = ""
        #: Entries of the selection that mean no law: nothing runs then.
        self.unknown: list[str] = []
        self._listener = listener or Listener()
        self._known: set[str] = set()
        self._laws: dict[str, Law] = {}
        self._cases_left: Counter[str] = Counter()
        self._cases: dict[str, list[LawOutcome]] = {}
        self._ended = 0
        self._problems: list[str] = []
        self._started = time.monotonic()

    def expect(self, cases: Iterable[Law], known: Iterable[str]) -> frozenset[str]:
        """Say which laws would run, once for each case; the ids of those that the plan means are given back.

        `known` are the ids of all laws of the area: fewer may run, when pytest is asked to leave some out.
        """
        found = list(cases)
        self._known = set(known)
        self.unknown = self.plan.selects_nothing(found)
        meant = [] if self.unknown else [law for law in found if self.plan.selects(law)]
        self._laws = {law.id: law for law in meant}
        self._cases_left = Counter(law.id for law in meant)
        return frozenset(self._laws)

    def problem(self, sentence: str) -> None:
        """Record a problem that fails the run and is not a law's failure."""
        self._problems.append(sentence)

    def inapplicable(self, law: Law) -> str | None:
        """Why the law is skipped: it needs a capability that the subject does not claim, or more time."""
        missing = sorted(entry.name.lower() for entry in law.needs - self.plan.subject.capabilities)
        if missing:
            return f"{self.plan.subject.name} does not claim {', '.join(missing)}"
        if law.soak and self.plan.profile not in SOAKING:
            return f"takes long: it runs with --profile {' or '.join(sorted(SOAKING))}"
        return None

    def enough_failed(self) -> bool:
        """Whether the plan wants no further law to run."""
        most = self.plan.maxfail
        return most is not None and self._failed() >= most

    def waiver(self, law: Law) -> str | None:
        """Why the law is waived, when it is."""
        return next((waiver.reason for waiver in self.plan.waivers if waiver.law == law.id), None)

    def begins(self, law: Law) -> None:
        """A case of a law is about to run."""
        if law.id not in self._cases:
            self._cases[law.id] = []
            self._listener.begins(law, len(self._laws))

    def passed(self, law: Law, seconds: float) -> None:
        self._add(law, LawOutcome(law.id, law.text, law.requirements, Verdict.PASSED, seconds))

    def skipped(self, law: Law, seconds: float, reason: str) -> None:
        self._add(law, LawOutcome(law.id, law.text, law.requirements, Verdict.SKIPPED, seconds, reason=reason))

    def failed(self, law: Law, seconds: float, message: str, detail: str) -> None:
        """A case failed, or what came before or after it. `message` is what was wrong, `detail` the traceback."""
        failure = LawOutcome(law.id, law.text, law.requirements, Verdict.FAILED, seconds, message, detail)
        self._add(law, replace(failure, reproduction=self.plan.command(law.id)))

    def ends(self, law: Law) -> None:
        """A case of a law is over."""
        self._cases_left[law.id] -= 1
        if not self._cases_left[law.id]:
            self._ended += 1
            self._listener.ended(self._of(law), self._ended, len(self._laws))

    def outcome(self) -> Outcome:
        """The outcome of the run so far."""
        laws = tuple(self._of(law) for law in self._laws.values())
        capabilities = self._capabilities(laws)
        problems = [*self._problems, *waiver_problems(self.plan.waivers, self._known_to_waivers(), laws)]
        partial = self._partial(laws)
        if not partial:
            problems += capability_problems(capabilities)
        if not self.interrupted and not self.stopped:
            problems += [f"{law.law} was not run" for law in laws if law.verdict is Verdict.NOT_RUN]
        return Outcome(
            run=self.plan.run(),
            laws=laws,
            capabilities=capabilities,
            problems=tuple(problems),
            seconds=round(time.monotonic() - self._started, 1),
            interrupted=self.interrupted,
            partial=partial,
        )

    def _partial(self, laws: tuple[LawOutcome, ...]) -> str:
        """How much of the area was run, and why not all."""
        ran = sum(law.verdict is not Verdict.NOT_RUN for law in laws)
        share = f"{ran} of {len(self._known)} laws"
        if self.interrupted:
            return f"{share}, then interrupted"
        if self.stopped and ran < len(laws):
            return f"{share}, stopped after {self._failed()} that failed"
        return "" if self._laws.keys() >= self._known else f"{share}, as selected"

    def _failed(self) -> int:
        ended = [law for law in self._laws.values() if not self._cases_left[law.id]]
        return sum(self._of(law).verdict is Verdict.FAILED for law in ended)

    def _capabilities(self, laws: tuple[LawOutcome, ...]) -> tuple[CapabilityOutcome, ...]:
        """Backends declare capabilities. A server describes those of each state, and its laws ask for them."""
        if self.plan.area != "backend":
            return ()
        return capability_outcomes(self.plan.subject.capabilities, self._laws.values(), laws)

    def _add(self, law: Law, case: LawOutcome) -> None:
        self._cases.setdefault(law.id, []).append(case)

    def _of(self, law: Law) -> LawOutcome:
        """The outcome of a law from all its cases, with the waivers applied."""
        cases = self._cases.get(law.id, [])
        if not cases or (self._cases_left[law.id] and not any(case.verdict is Verdict.FAILED for case in cases)):
            return LawOutcome(law.id, law.text, law.requirements, Verdict.NOT_RUN)
        verdicts = [case.verdict for case in cases]
        worst = next(verdict for verdict in (Verdict.FAILED, Verdict.PASSED, Verdict.SKIPPED) if verdict in verdicts)
        shown = cases[verdicts.index(worst)]
        if (more := verdicts.count(Verdict.FAILED) - 1) > 0:
            shown = replace(shown, message=f"{shown.message}\n(and {more} more of its cases)")
        whole = replace(shown, seconds=round(sum(case.seconds for case in cases), 3))
        (judged,) = judge([whole], self.plan.waivers)
        return judged

    def _known_to_waivers(self) -> set[str]:
        """A project may keep the waivers of all areas in one file; another area's laws are known as well."""
        named = {waiver.law.split(".")[0] for waiver in self.plan.waivers}
        others = [area for area in AREAS if area in named and area != self.plan.area]
        return self._known | {law.id for area in others for law in find_laws(area)}
