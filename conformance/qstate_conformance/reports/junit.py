"""Outcomes as JUnit XML, for the servers that build and show tests.

Rules of this module: one test suite per outcome, one test case per law; a problem of the run is a failed test case
of its own, so that readers of the report need no exit code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from qstate_conformance.outcomes import LawOutcome, Outcome, Verdict

__all__ = ["render"]

#: What XML 1.0 cannot carry, escaped or not; generated keys and values contain it.
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(outcomes: Sequence[Outcome]) -> str:
    """The report, with a newline at its end."""
    root = ElementTree.Element("testsuites")
    for outcome in outcomes:
        _suite(root, outcome)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, outcome: Outcome) -> None:
    run = outcome.run
    partial = {"partial": outcome.partial} if outcome.partial else {}
    name = f"qstate-conformance {run.area} {run.subject}" + "".join(f" (partial: {why})" for why in partial.values())
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=_clean(name),
        tests=str(len(outcome.laws) + len(outcome.problems)),
        failures=str(len(outcome.of(Verdict.FAILED)) + len(outcome.problems)),
        errors="0",
        skipped=str(sum(_skipped(law) for law in outcome.laws)),
        time=f"{outcome.seconds:.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"profile": run.profile, "seed": str(run.seed), "command": run.command, **partial, **run.versions}
    for key, value in facts.items():
        ElementTree.SubElement(properties, "property", name=key, value=_clean(value))
    for law in outcome.laws:
        _case(suite, law)
    for number, problem in enumerate(outcome.problems, 1):
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{run.area}.run", name=f"problem {number}", time="0"
        )
        ElementTree.SubElement(case, "failure", message=_clean(problem))


def _case(suite: ElementTree.Element, law: LawOutcome) -> None:
    classname, _, name = law.law.rpartition(".")
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name, time=f"{law.seconds:.3f}")
    if law.verdict is Verdict.FAILED:
        failure = ElementTree.SubElement(case, "failure", message=_clean(law.text))
        failure.text = _clean(f"{law.message}\n\n{law.reproduction}\n\n{law.detail}")
    elif _skipped(law):
        ElementTree.SubElement(case, "skipped", message=_clean(f"{law.verdict.value}: {law.reason} {law.link}".strip()))


def _skipped(law: LawOutcome) -> bool:
    return law.verdict in (Verdict.SKIPPED, Verdict.WAIVED, Verdict.NOT_RUN)


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)
