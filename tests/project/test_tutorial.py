"""The tutorial, run as a reader does: its files, its commands, and their printed output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.documentation import Page
from tests.project.shells import Shells

FIRST_JOB = Page("docs/tutorial/first-job.md")


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Shells]:
    shells = Shells(tmp_path)
    yield shells
    shells.close()


@pytest.mark.spark
def test_the_first_job_does_what_the_page_says(shells: Shells) -> None:
    shells.act_out(FIRST_JOB)
    shells.interrupt("first shell")
