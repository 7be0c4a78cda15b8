"""The drawings of the documentation: made by their script, readable on a phone, in light and in dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser

from docs.drawings import draw, inline
from tests.browser import browser
from tests.project.documentation import ROOT

__all__ = ["browser"]

#: The width of a column of text on a phone.
PHONE = 343
LEAST_TEXT_PX = 10
LEAST_CONTRAST = 4.5
#: Texts that are not inside the smallest box that their middle is in, or not inside the drawing.
CUT_OFF = """() => {
  const rects = [...document.querySelectorAll('rect')].map(one => one.getBoundingClientRect());
  const frame = document.querySelector('svg').getBoundingClientRect();
  return [...document.querySelectorAll('text')].filter(text => {
    const at = text.getBoundingClientRect(), x = (at.left + at.right) / 2, y = (at.top + at.bottom) / 2;
    const around = rects.filter(one => one.left < x && x < one.right && one.top < y && y < one.bottom);
    const box = [frame, ...around].reduce((a, b) => a.width * a.height < b.width * b.height ? a : b);
    return at.left < box.left + 1 || at.right > box.right - 1 || at.top < box.top || at.bottom > box.bottom;
  }).map(text => text.textContent);
}"""
LEAST_PX = """() => Math.min(...[...document.querySelectorAll('text')].map(one =>
  parseFloat(getComputedStyle(one).fontSize) * document.querySelector('svg').getBoundingClientRect().width
  / document.querySelector('svg').viewBox.baseVal.width))"""
COLOURS = """() => ({
  texts: [...document.querySelectorAll('text')].map(one => getComputedStyle(one).fill),
  boxes: [...document.querySelectorAll('rect')].map(one => getComputedStyle(one).fill),
})"""


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_the_files_are_those_of_the_script(name: str) -> None:
    made = draw.DRAWINGS[name]().svg()
    ElementTree.fromstring(made)
    assert (draw.HERE / f"{name}.svg").read_text(encoding="utf-8") == made, (
        "run: PYTHONPATH=. python docs/drawings/draw.py"
    )


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_no_text_is_cut_off_small_or_pale_on_a_phone(browser: Browser, mode: str) -> None:
    context = browser.new_context(viewport={"width": PHONE, "height": 800}, color_scheme=mode)  # type: ignore[arg-type]
    page = context.new_page()
    for name in draw.DRAWINGS:
        page.goto((draw.HERE / f"{name}.svg").as_uri())
        assert page.evaluate(CUT_OFF) == [], name
        assert page.evaluate(LEAST_PX) >= LEAST_TEXT_PX, name
        found = page.evaluate(COLOURS)
        assert min(contrast(text, box) for text in set(found["texts"]) for box in set(found["boxes"])) > LEAST_CONTRAST
    context.close()


def test_on_the_site_the_text_is_part_of_the_page() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    html = '<p><img alt="A &quot;query&quot;." src="drawings/front.svg" /></p> <img alt="x" src="how-to/a.png" />'
    shown = inline.on_page_content(html, page=page, config={"docs_dir": str(ROOT / "docs")})
    assert "your function</text>" in shown
    assert 'src="drawings/front.svg"' not in shown
    assert shown.endswith('<img alt="x" src="how-to/a.png" />')


def contrast(one: str, other: str) -> float:
    """That of two colours, as the guidelines for accessible pages define it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
