"""The pages of the documentation and the blocks of code in them.

The convention, so that a reader can trust what is on a page:

    ```python                 is run: the blocks of a page in their order, in one namespace
    ```python title="a.py"    is a file of that name, for the blocks after it
    ```bash                   is run where the page is acted out as a whole (the tutorial), else its syntax is
                              checked, and its `qstate` commands against the command line's own parser
    ```bash title="..."       the same in a shell of that name, where it runs while the page continues
    ```text, ```toml, ```yaml is not run; after a ```bash block that is acted out, ```text is its output
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.M)


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is the page's line that its text starts in."""

    language: str
    title: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A page, by its path in the checkout."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[Block]:
        text = self.text
        return [
            Block(found["language"], found["title"], found["text"], text.count("\n", 0, found.start("text")) + 1)
            for found in _BLOCK.finditer(text)
        ]

    def programs(self) -> list[Block]:
        """The Python blocks that are run in the page's namespace."""
        return [block for block in self.blocks if block.language == "python" and block.title is None]


def pages() -> list[Page]:
    """Every page that users read: those at the root of the checkout and those of the site."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [Page(str(path.relative_to(ROOT))) for path in sorted(found)]


def run_program(page: Page, block: Block, namespace: dict[str, object], proxy: tuple[str, int] | None = None) -> None:
    """Run one block. A failure shows the page's line. The proxies' addresses in the pages are replaced by `proxy`."""
    text = block.text
    if proxy is not None:
        for written in ('"localhost", 9069', '"127.0.0.1", 9069', '"127.0.0.1", 9100'):
            text = text.replace(written, f'"{proxy[0]}", {proxy[1]}')
        text = text.replace('"localhost:9069"', f'"{proxy[0]}:{proxy[1]}"')
    exec(compile("\n" * (block.line - 1) + text, str(page.path), "exec"), namespace)
