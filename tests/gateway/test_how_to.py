"""The page about the gateway: its `curl` commands run, and print what the page says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.gateway.running_gateway import running_gateway
from tests.project.documentation import Block, Page
from tests.project.served_job import serve, serve_history

PAGE = Page("docs/how-to/gateway.md")
WRITTEN = "http://localhost:8069"
#: A stream has no end: curl is stopped after so many seconds, with this code.
STREAM_S = 1.5
TIMED_OUT = 28


def commands() -> list[tuple[Block, str]]:
    """The commands of the page that ask a gateway, each with what it prints."""
    blocks = PAGE.blocks
    return [(one, after.text) for one, after in pairwise(blocks) if "curl" in one.text]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, str]]:
    """The gateways of a state with changes and of one that can be scanned, by whether a command is about changes."""
    with (
        serve(tmp_path_factory.mktemp("served"), job="alerts") as served,
        serve_history(tmp_path_factory.mktemp("history"), job="alerts") as (history, _),
        running_gateway(served) as one,
        running_gateway(history) as other,
    ):
        yield {False: one.url, True: other.url}


@pytest.mark.parametrize(("block", "printed"), commands(), ids=lambda value: str(getattr(value, "line", ""))[:5])
def test_commands_print_what_the_page_says(urls: dict[bool, str], block: Block, printed: str, tmp_path: Path) -> None:
    stream = "/changes" in block.text
    text = block.text.replace(WRITTEN, urls[stream])
    assert text != block.text
    if stream:
        text = text.replace("curl ", f"curl --max-time {STREAM_S} ")
    done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == (TIMED_OUT if stream else 0), done.stderr
    assert done.stdout.strip() == printed.strip()
