"""The one-page report for people at a terminal or in the log of a build.

Rules of this module: it writes an outcome as plain text, worst first, and the verdict last, where the eye is. What
passed is counted, not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from qstate_conformance.outcomes import INTERRUPTED, LawOutcome, Outcome, Verdict

__all__ = ["render", "summarize"]

_MARGIN = "    "
#: Lines of one failure; a program that could not be made short must not push the others off the page.
_MOST_LINES = 40


def render(outcome: Outcome) -> str:
    """The report, without a newline at its end."""
    return "\n".join(_lines(outcome))


def summarize(outcome: Outcome) -> str:
    """The report without the failures, for where those have been shown already."""
    return "\n".join(_rest(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    run = outcome.run
    yield f"Conformance of the {run.area} {run.subject}"
    yield f"profile {run.profile}, seed {run.seed}, {outcome.seconds:.1f} s; " + ", ".join(
        f"{name} {value}" for name, value in run.versions.items()
    )
    for law in outcome.of(Verdict.FAILED):
        yield from _failure(law)
    yield from _rest(outcome)


def _rest(outcome: Outcome) -> Iterator[str]:
    yield from _waived(outcome)
    yield from _skipped(outcome)
    yield from _capabilities(outcome)
    yield ""
    for problem in outcome.problems:
        yield f"PROBLEM {problem}"
    yield from _verdict(outcome)


def _failure(law: LawOutcome) -> Iterator[str]:
    yield ""
    yield f"FAILED {law.law} [{', '.join(law.requirements)}]"
    yield f"{_MARGIN}{law.text}"
    yield ""
    yield indent("\n".join(_shortened(law.message.splitlines())), _MARGIN)
    yield ""
    yield f"{_MARGIN}{law.reproduction}"


def _shortened(lines: list[str]) -> list[str]:
    """The beginning and the end, where the broken promise and the program are."""
    if len(lines) <= _MOST_LINES:
        return lines
    half = _MOST_LINES // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} lines, which the other reports have ...", *lines[-half:]]


def _waived(outcome: Outcome) -> Iterator[str]:
    for law in outcome.of(Verdict.WAIVED):
        yield ""
        yield f"WAIVED {law.law} [{', '.join(law.requirements)}]"
        yield f"{_MARGIN}{law.reason} ({law.link})"


def _skipped(outcome: Outcome) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for law in outcome.of(Verdict.SKIPPED):
        reasons.setdefault(law.reason, []).append(law.law)
    for reason, laws in reasons.items():
        yield ""
        yield f"SKIPPED {len(laws)}: {reason}"
        yield from (f"{_MARGIN}{law}" for law in laws)


def _capabilities(outcome: Outcome) -> Iterator[str]:
    if outcome.capabilities:
        yield ""
        yield "Capabilities"
    for entry in outcome.capabilities:
        if not entry.claimed:
            says = "not claimed"
        elif entry.proved:
            says = f"claimed, proved by {_count(len(entry.proved_by), 'law')}"
        else:
            says = "claimed, not proved by what was run" if outcome.partial else "claimed, NOT PROVED"
        yield f"{_MARGIN}{entry.name:<20} {says}"


def _verdict(outcome: Outcome) -> Iterator[str]:
    counts = [f"{len(found)} {verdict.value}" for verdict in Verdict if (found := outcome.of(verdict))]
    yield f"{_count(len(outcome.laws), 'law')}: {', '.join(counts) or 'none'}"
    broken = [name for name, laws in outcome.by_requirement().items() if any(_failed(law) for law in laws)]
    if broken:
        yield f"broken rules: {', '.join(sorted(broken))}"
    if outcome.partial:
        yield f"PARTIAL RUN: {outcome.partial}"
    subject = outcome.run.subject
    if outcome.exit_code == INTERRUPTED:
        yield f"{subject}: interrupted, no verdict"
    elif outcome.exit_code != 0:
        yield f"{subject} does NOT conform"
    elif outcome.partial:
        yield f"{subject} keeps the laws that ran"
    else:
        yield f"{subject} conforms" + (", but for what is waived" if outcome.of(Verdict.WAIVED) else "")


def _failed(law: LawOutcome) -> bool:
    return law.verdict is Verdict.FAILED


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
