"""Laws, plans and outcomes made by hand, to test the rules that judge them."""

from __future__ import annotations

from collections.abc import Iterable

from qstate.backends import Capability, HeapBackend
from qstate_conformance.laws import Law
from qstate_conformance.outcomes import CapabilityOutcome, LawOutcome, Outcome, Run, Verdict
from qstate_conformance.plan import Plan
from qstate_conformance.recording import Recording
from qstate_conformance.subjects import BackendSubject
from qstate_conformance.waivers import Waiver


def made_up_law(
    name: str, *, needs: Iterable[Capability] = (), proves: Iterable[Capability] = (), soak: bool = False
) -> Law:
    return Law(
        f"backend.made_up.{name}", f"About {name}.", ("T1",), frozenset(needs), frozenset(proves), lambda: None, soak
    )


def made_up_recording(
    laws: Iterable[Law],
    *,
    claims: Iterable[Capability] = (),
    waivers: tuple[Waiver, ...] = (),
    selection: tuple[str, ...] = (),
    profile: str = "dev",
) -> Recording:
    """The recording of a run of these laws that has begun."""

    class MadeUp(HeapBackend):
        name = "made_up"
        capabilities = frozenset(claims)

    recording = Recording(Plan(BackendSubject("made_up", MadeUp), selection, profile, 0, waivers))
    found = list(laws)
    recording.expect(found, [law.id for law in found])
    return recording


def passes(recording: Recording, *laws: Law) -> None:
    for law in laws:
        recording.begins(law)
        recording.passed(law, 0.1)
        recording.ends(law)


def fails(recording: Recording, *laws: Law) -> None:
    for law in laws:
        recording.begins(law)
        recording.failed(law, 0.1, "it is broken", "Traceback ...")
        recording.ends(law)


def made_up_outcome(subject: str, verdicts: dict[str, Verdict], *, area: str = "backend", message: str = "") -> Outcome:
    """An outcome with one law for each verdict."""
    laws = tuple(
        LawOutcome(
            f"{area}.{name}",
            f"About {name}.",
            ("T1", "R2"),
            verdict,
            seconds=0.5,
            message=message if verdict is Verdict.FAILED else "",
            reason="no time" if verdict in (Verdict.WAIVED, Verdict.SKIPPED) else "",
            link="https://example.org/1" if verdict is Verdict.WAIVED else "",
            reproduction=f"qstate-conformance {area} {subject}",
        )
        for name, verdict in verdicts.items()
    )
    capabilities = (
        CapabilityOutcome("snapshot_reads", "never torn", True, ("backend.reads.whole",)),
        CapabilityOutcome("larger_than_memory", "bounded", False, ()),
    )
    run = Run(area, subject, "ci", 0, (), f"qstate-conformance {area} {subject}", {"qstate": "1.0"})
    return Outcome(run, laws, capabilities, ("a problem",) if "problem" in subject else (), 12.3)
