"""The report of a failure: both values by name, the law's line, and the author's own lines."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from qstate_conformance.differences import labelled
from qstate_conformance.failures import failure_message
from qstate_conformance.outcomes import LawOutcome
from qstate_conformance.plan import Plan
from qstate_conformance.run import run
from qstate_conformance.subjects import backend_subject
from tests.framework_backends import BROKEN_LAW
from tests.suite_command import suite

RAISING = "tests.framework_backends:Raising"


def broken(name: str, law: str) -> LawOutcome:
    (found,) = run(Plan(backend_subject(name), (law,), "dev")).laws
    return found


def test_two_values_are_named() -> None:
    message = broken("tests.framework_backends:Forgetful", BROKEN_LAW).message
    assert re.search(r"^expected: '.+'\nfound:    None$", message, re.MULTILINE)


def test_a_plain_comparison_names_its_values() -> None:
    message = broken(
        "tests.framework_backends:Forgetful", "backend.live_reads.answers_have_the_documented_form"
    ).message
    assert "assert found == expected" in message
    assert re.search(r"^ *expected: ", message, re.MULTILINE)
    assert re.search(r"^ *found:    ", message, re.MULTILINE)


def test_the_line_of_the_law_is_shown() -> None:
    message = broken("tests.framework_backends:Forgetful", BROKEN_LAW).message
    assert re.search(r"laws_tables\.py:\d+, in test_get_gives_what_was_put\n    check_same\(", message)


def test_the_authors_own_lines_are_shown_and_no_others() -> None:
    message = broken(RAISING, BROKEN_LAW).message
    assert re.search(r"framework_backends\.py:\d+, in put\n    return self\._kept\(value\)\n", message)
    assert re.search(r'framework_backends\.py:\d+, in _kept\n    raise LookupError\("no room"\) from exc\n', message)
    shown = set(re.findall(r"^(\S+\.py):\d+, in ", message, re.MULTILINE))
    assert {name.rpartition("/")[2] for name in shown} == {"laws_tables.py", "framework_backends.py"}


def test_the_lines_of_a_cause_are_shown_before_those_of_its_effect() -> None:
    message = broken(RAISING, BROKEN_LAW).message
    assert re.search(r"raise KeyError\(type.*\nKeyError: '\w+'\n.*raise LookupError", message, re.DOTALL)


def test_text_report_shows_the_authors_own_lines() -> None:
    ran = suite("backend", RAISING, "--profile", "dev", "--select", BROKEN_LAW)
    assert re.search(r"framework_backends\.py:\d+, in _kept", ran.stdout)


@pytest.mark.parametrize(
    ("found", "expected", "lines"),
    [
        (0, 7, ["expected: 7", "found:    0"]),
        ([1, 2], [1, 2, 3], ["expected: [1, 2, 3]", "found:    [1, 2]"]),
    ],
)
def test_short_values_are_shown_whole(found: object, expected: object, lines: list[str]) -> None:
    assert labelled(found, expected) == lines


@pytest.mark.parametrize(
    ("make", "differ"),
    [
        (lambda middle: [*range(2_000), middle, *range(2_000)], "differ at [2000]: expected 'a', found 'b'"),
        (lambda middle: {**dict.fromkeys(range(2_000)), "k": middle}, "differ at ['k']: expected 'a', found 'b'"),
        (lambda middle: "x" * 5_000 + middle + "x" * 5_000, "differ at [5000]: expected 'axxx"),
        (lambda middle: b"x" * 5_000 + middle.encode() + b"x" * 5_000, "differ at [5000]: expected b'axxx"),
        (lambda middle: list(range(2_000 + ord(middle))), "differ in length: expected 2097, found 2098"),
    ],
    ids=["list", "dict", "text", "bytes", "length"],
)
def test_long_values_are_cut_and_the_first_difference_is_named(make: Callable[[str], object], differ: str) -> None:
    lines = labelled(make("b"), make("a"))
    assert len(lines) == 3
    assert all(len(line) < 400 for line in lines)
    assert lines[2].startswith(differ)


def test_what_cannot_be_compared_is_shown_all_the_same() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("no")

        def __repr__(self) -> str:
            return "odd" * 1_000

        __hash__ = None  # type: ignore[assignment]

    assert len(labelled([Odd()], [Odd()])) == 2


def test_notes_for_those_who_edit_tests_are_left_out() -> None:
    exc = ValueError("wrong")
    vars(exc)["__notes__"] = ["You can reproduce this example by ...", "Failing test case: ..."]
    assert failure_message(exc) == "ValueError: wrong\nFailing test case: ..."
