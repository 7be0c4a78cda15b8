"""Every link inside the repository leads somewhere: to a file that exists, and to a heading that it has.

`mkdocs --strict` checks the links between pages of the site, as the site shows them. This covers the rest: pages that
are read in the source tree (README, changelog and its fragments, the READMEs of the examples), links from these into
the documentation, anchors by both ways of making them from headings, pictures, and pages that code names.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from tests.project.documentation import ROOT

#: Folders with pages that people read in the source tree, and those with code.
PROSE = ("docs", "examples", "conformance", "benchmarks", "changelog.d")
CODE = ("qstate", "pyspark_qstate", "tests")
LEFT_OUT = {"node_modules", ".pytest_cache", "build", "dist"}
SITE = ROOT / "docs"

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.M)
_CODE = re.compile(r"``[^`].*?``|`[^`\n]*`")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HTML = re.compile(r"<(?:a|img|source|object)\b[^>]*?\b(?:href|src|srcset|data)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
_ID = re.compile(r"\bid=\"([^\"]+)\"|\{#([\w.-]+)\}|^::: (\S+)$", re.M)
_PICTURE = re.compile(r"!\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(")


@dataclass(frozen=True)
class Link:
    page: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.target}"


def files(*suffixes: str, folders: tuple[str, ...] = PROSE) -> list[Path]:
    found = [*ROOT.glob("*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    return sorted(
        path for path in found if path.suffix in suffixes and not LEFT_OUT & set(path.relative_to(ROOT).parts)
    )


PAGES = files(".md")
PAGES_OF_SITE = [page for page in PAGES if page.is_relative_to(SITE)]


def prose(page: Path) -> str:
    """The text without code, and with its line numbers."""
    text = page.read_text(encoding="utf-8")
    for code in (_FENCE, _CODE):
        text = code.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def links(page: Path) -> Iterator[Link]:
    """The links that do not lead out of the repository. A link's text may be code, which `prose` leaves out."""
    text = prose(page)
    for pattern in (_LINK, _HTML):
        for found in pattern.finditer(text):
            if not found[1].startswith(("http://", "https://", "mailto:")):
                yield Link(page, text.count("\n", 0, found.start()) + 1, unquote(found[1]))


def target_of(link: Link) -> tuple[Path, str]:
    """The file and the anchor. A fragment of the changelog becomes a part of CHANGELOG.md, at the root."""
    path, _, anchor = link.target.partition("#")
    base = ROOT if link.page.parent.name == "changelog.d" and link.page.name != "README.md" else link.page.parent
    return (base / path).resolve() if path else link.page, anchor


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a page has everywhere: on the site, and where hosts of source trees show it."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    explicit = {next(filter(None, found)) for found in _ID.findall(text)}
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found).replace("`", "") for found in _HEADING.findall(text)]
    source = set(_numbered(map(_source_slug, headings), "-"))
    if page.is_relative_to(SITE):
        source &= set(_numbered(map(_site_slug, headings), "_"))
    return explicit | source


def _site_slug(heading: str) -> str:
    """That of Markdown's table of contents."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _source_slug(heading: str) -> str:
    """That of the hosts that show a README."""
    return re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", heading).strip().lower())


def _numbered(slugs: Iterator[str], separator: str) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for slug in slugs:
        yield f"{slug}{separator}{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for link in (link for page in PAGES for link in links(page)):
        path, anchor = target_of(link)
        if not path.exists():
            broken.append(f"{link} (no such file)")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(f"{link} (no such heading)")
    assert not broken, "\n".join(broken)


def test_pages_of_the_site_do_not_lead_out_of_it() -> None:
    """A reader of the site has only the site."""
    leaving = [link for page in PAGES_OF_SITE for link in links(page) if not target_of(link)[0].is_relative_to(SITE)]
    assert not leaving, "\n".join(map(str, leaving))


def test_pictures_say_in_words_what_they_show() -> None:
    silent = [(page, words) for page in PAGES for words in _PICTURE.findall(prose(page)) if len(words) < 20]
    assert not silent


def test_every_page_of_the_site_is_in_its_navigation_and_linked() -> None:
    navigation = set(re.findall(r"- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert navigation == {str(page.relative_to(SITE)) for page in PAGES_OF_SITE}
    linked = {target_of(link)[0] for page in PAGES for link in links(page)}
    assert set(PAGES_OF_SITE) <= linked


def test_every_picture_of_the_site_is_shown() -> None:
    assert set(files(".png", ".svg", folders=("docs",))) <= {target_of(one)[0] for page in PAGES for one in links(page)}


def test_files_that_code_and_pages_name_exist() -> None:
    """Such as a page of the documentation in a docstring, or a file of the source tree in a guide."""
    named = re.compile(
        r"(?<![\w/.-])((?:docs|examples|benchmarks|conformance|tests)/[\w/.-]*\w\.\w+|qstate/[\w/]+\.py)(?![\w/])"
    )
    missing = []
    for path in files(".py", ".md", ".toml", ".ini", ".yml", ".js", folders=(*PROSE, *CODE)):
        for found in named.findall(path.read_text(encoding="utf-8")):
            if not (ROOT / found).exists():
                missing.append(f"{path.relative_to(ROOT)} names {found}")
    assert not missing, "\n".join(missing)
