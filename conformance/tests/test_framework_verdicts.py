"""The rules that judge a run: failures, capabilities, waivers, laws with several cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstate.backends import Capability
from qstate_conformance.outcomes import INTERRUPTED, Verdict
from qstate_conformance.waivers import Waiver, WaiverError, read_waivers
from tests.framework_backends import BROKEN_LAW, KEPT_LAW, SNAPSHOT_LAW
from tests.made_up import fails, made_up_law, made_up_recording, passes
from tests.suite_command import suite

ONE, TWO = made_up_law("one"), made_up_law("two")
PROOF = made_up_law(
    "proof", needs=[Capability.COMMITTED_READS, Capability.SNAPSHOT_READS], proves=[Capability.SNAPSHOT_READS]
)
FORGETFUL = "tests.framework_backends:Forgetful"
WAIVER = '[[waiver]]\nlaw = "{law}"\nreason = "texts come with version 2"\nlink = "https://example.org/7"\n'


def waiver_of(law: str) -> Waiver:
    return Waiver(law, "it will be repaired", "https://example.org/1")


def test_a_run_without_failures_conforms() -> None:
    recording = made_up_recording([ONE, TWO])
    passes(recording, ONE, TWO)
    assert recording.outcome().exit_code == 0


def test_one_failure_fails_the_run() -> None:
    recording = made_up_recording([ONE, TWO])
    passes(recording, ONE)
    fails(recording, TWO)
    outcome = recording.outcome()
    assert outcome.exit_code == 1
    assert [law.law for law in outcome.of(Verdict.FAILED)] == [TWO.id]


def test_a_law_that_was_not_run_fails_the_run() -> None:
    recording = made_up_recording([ONE, TWO])
    passes(recording, ONE)
    outcome = recording.outcome()
    assert outcome.problems == (f"{TWO.id} was not run",)
    assert outcome.exit_code == 1


def test_an_interrupted_run_has_an_exit_code_of_its_own_unless_it_failed_before() -> None:
    recording = made_up_recording([ONE, TWO])
    passes(recording, ONE)
    recording.interrupted = True
    assert recording.outcome().exit_code == INTERRUPTED
    fails(recording, TWO)
    assert recording.outcome().exit_code == 1


# --- laws with several cases -------------------------------------------------------------------------------------


def test_a_law_is_kept_when_all_its_cases_are() -> None:
    recording = made_up_recording([ONE, ONE, ONE])
    passes(recording, ONE, ONE)
    assert recording.outcome().laws[0].verdict is Verdict.NOT_RUN
    passes(recording, ONE)
    (law,) = recording.outcome().laws
    assert law.verdict is Verdict.PASSED
    assert law.seconds == pytest.approx(0.3)


def test_a_law_is_broken_when_one_of_its_cases_is() -> None:
    recording = made_up_recording([ONE, ONE, ONE])
    passes(recording, ONE)
    fails(recording, ONE, ONE)
    (law,) = recording.outcome().laws
    assert law.verdict is Verdict.FAILED
    assert law.message == "it is broken\n(and 1 more of its cases)"


def test_a_law_that_fails_after_it_passed_is_broken() -> None:
    """Such as when what it used cannot be closed."""
    recording = made_up_recording([ONE])
    recording.begins(ONE)
    recording.passed(ONE, 0.1)
    recording.failed(ONE, 0.1, "it cannot be closed", "Traceback ...")
    recording.ends(ONE)
    assert recording.outcome().laws[0].verdict is Verdict.FAILED


# --- capabilities ------------------------------------------------------------------------------------------------


def test_a_claim_that_a_law_proves_is_proved() -> None:
    claims = [Capability.COMMITTED_READS, Capability.SNAPSHOT_READS]
    other = made_up_law("other", proves=[Capability.COMMITTED_READS])
    recording = made_up_recording([PROOF, other], claims=claims)
    passes(recording, PROOF, other)
    outcome = recording.outcome()
    assert {entry.name: (entry.claimed, entry.proved_by) for entry in outcome.capabilities} == {
        "snapshot_reads": (True, (PROOF.id,)),
        "larger_than_memory": (False, ()),
        "committed_reads": (True, (other.id,)),
        "scans": (False, ()),
        "parts": (False, ()),
    }
    assert outcome.exit_code == 0


def test_a_claim_that_no_law_proves_fails_the_run() -> None:
    recording = made_up_recording([ONE], claims=[Capability.LARGER_THAN_MEMORY])
    passes(recording, ONE)
    outcome = recording.outcome()
    assert outcome.problems == ("the capability larger_than_memory is claimed, and no law that passed proves it",)
    assert outcome.exit_code == 1


def test_a_waived_law_proves_nothing() -> None:
    claims = [Capability.COMMITTED_READS, Capability.SNAPSHOT_READS]
    other = made_up_law("other", proves=[Capability.COMMITTED_READS])
    recording = made_up_recording([PROOF, other], claims=claims, waivers=(waiver_of(PROOF.id),))
    passes(recording, other)
    fails(recording, PROOF)
    outcome = recording.outcome()
    assert [law.law for law in outcome.of(Verdict.WAIVED)] == [PROOF.id]
    assert outcome.problems == ("the capability snapshot_reads is claimed, and no law that passed proves it",)


def test_a_selection_need_not_prove_what_it_leaves_out() -> None:
    recording = made_up_recording([ONE, PROOF], claims=[Capability.SNAPSHOT_READS], selection=(ONE.id,))
    passes(recording, ONE)
    assert recording.outcome().exit_code == 0


def test_law_names_the_undeclared_capability_that_it_needs() -> None:
    recording = made_up_recording([PROOF], claims=[Capability.COMMITTED_READS])
    assert recording.inapplicable(PROOF) == "made_up does not claim snapshot_reads"
    assert recording.inapplicable(ONE) is None


def test_laws_of_what_is_not_claimed_are_skipped_and_listed() -> None:
    ran = suite("backend", "heap", "--profile", "dev", "--select", SNAPSHOT_LAW, "--select", KEPT_LAW)
    assert ran.returncode == 0, ran.stderr
    assert "heap does not claim snapshot_reads" in ran.stdout
    assert "2 laws: 1 passed, 1 skipped" in ran.stdout


# --- waivers -----------------------------------------------------------------------------------------------------


def test_a_waived_failure_does_not_fail_the_run() -> None:
    recording = made_up_recording([ONE, TWO], waivers=(waiver_of(ONE.id),))
    fails(recording, ONE)
    passes(recording, TWO)
    outcome = recording.outcome()
    assert outcome.exit_code == 0
    (law,) = outcome.of(Verdict.WAIVED)
    assert (law.law, law.reason, law.link) == (ONE.id, "it will be repaired", "https://example.org/1")


def test_a_waiver_ends_when_its_law_passes() -> None:
    recording = made_up_recording([ONE], waivers=(waiver_of(ONE.id),))
    passes(recording, ONE)
    outcome = recording.outcome()
    assert outcome.problems == (f"the waiver of {ONE.id} is not needed: the law passes; remove it",)
    assert outcome.exit_code == 1


def test_a_waiver_of_an_unknown_law_fails_the_run() -> None:
    recording = made_up_recording([ONE], waivers=(waiver_of("backend.made_up.gone"),))
    passes(recording, ONE)
    outcome = recording.outcome()
    assert outcome.problems == ("the waiver of backend.made_up.gone names no law; see `qstate-conformance list`",)
    assert outcome.exit_code == 1


def test_waiver_of_an_unselected_law_is_ignored() -> None:
    recording = made_up_recording([ONE, TWO], selection=(TWO.id,), waivers=(waiver_of(ONE.id),))
    passes(recording, TWO)
    assert recording.outcome().exit_code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[waiver]]\nlaw = "a"\nlink = "b"\n', "waiver 1: reason is missing"),
        ('[[waiver]]\nlaw = "a"\nreason = " "\nlink = "b"\n', "waiver 1: reason is missing"),
        ('[[waiver]]\nlaw = "a"\nreason = "b"\n', "waiver 1: link is missing"),
        (WAIVER.format(law="a") + '[[waiver]]\nreason = "b"\nlink = "c"\n', "waiver 2: law is missing"),
        (WAIVER.format(law="a") + 'until = "2030"\n', "waiver 1: unknown until"),
        (WAIVER.format(law="a") * 2, "waived more than once: a"),
        ('[waiver]\nlaw = "a"\n', r"written \[\[waiver\]\]"),
        ("[[waivers]]\n", "unknown waivers"),
        ("[[waiver]", "cannot read the waivers"),
    ],
)
def test_a_waiver_file_that_says_too_little_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "waivers.toml"
    file.write_text(text)
    with pytest.raises(WaiverError, match=says):
        read_waivers(file)


def test_an_empty_waiver_file_waives_nothing(tmp_path: Path) -> None:
    file = tmp_path / "waivers.toml"
    file.write_text("# nothing to waive\n")
    assert read_waivers(file) == ()


def test_waivers_of_the_command_line(tmp_path: Path) -> None:
    """The same file is good for the subject that breaks the law, and fails the one that keeps it."""
    file = tmp_path / "waivers.toml"
    file.write_text(WAIVER.format(law=BROKEN_LAW))
    options = ("--profile", "dev", "--select", BROKEN_LAW, "--waivers", str(file))
    broken, kept = suite("backend", FORGETFUL, *options), suite("backend", "heap", *options)
    assert broken.returncode == 0
    assert "texts come with version 2 (https://example.org/7)" in broken.stdout
    assert kept.returncode == 1
    assert "is not needed: the law passes" in kept.stdout
