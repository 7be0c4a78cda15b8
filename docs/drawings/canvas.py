"""Draws boxes, arrows and text as SVG.

A drawing is 400 units wide, and its text is 12 to 14 units high: on a phone, where a column has some 340 pixels, it
stays readable. Colours are variables, so that the page's dark mode changes them; an SVG that is opened by itself
follows the system.
"""

from __future__ import annotations

from html import escape

__all__ = ["WIDTH", "Canvas"]

WIDTH = 400
LINE = 16

_STYLE = """
  :root.qd { --qd-ink: #1f2328; --qd-soft: #57606a; --qd-line: #8b93a1; --qd-box: #f6f7fb; --qd-group: #ffffff;
    --qd-strong: #e3e7fb; background: #ffffff; }
  @media (prefers-color-scheme: dark) {
    :root.qd { --qd-ink: #e6e9ef; --qd-soft: #a6adba; --qd-line: #7d8594; --qd-box: #262a33; --qd-group: #1b1e25;
      --qd-strong: #323a63; background: #15171c; }
  }
  .qd text { fill: var(--qd-ink); font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
  .qd .name { font-weight: 600; }
  .qd .soft { fill: var(--qd-soft); font-size: 12px; }
  .qd .code { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
  .qd .box { fill: var(--qd-box); stroke: var(--qd-line); }
  .qd .group { fill: var(--qd-group); stroke: var(--qd-line); stroke-dasharray: 4 3; }
  .qd .strong { fill: var(--qd-strong); stroke: var(--qd-line); }
  .qd .arrow { fill: none; stroke: var(--qd-soft); stroke-width: 1.5; }
  .qd .head { fill: var(--qd-soft); }
"""


class Canvas:
    """A drawing that grows downwards. `name` is unique among the drawings of a page."""

    def __init__(self, name: str, title: str, description: str, height: int) -> None:
        self._name, self._title, self._description, self._height = name, title, description, height
        self._parts: list[str] = []

    def box(self, at: tuple[int, int], size: tuple[int, int], *lines: str, kind: str = "box") -> None:
        """A box with centred lines: the first one is its name; `lines` in backquotes are code, others soft."""
        (x, y), (width, height) = at, size
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + (height - LINE * len(lines)) / 2 + 12
        for number, line in enumerate(lines):
            self.text((x + width // 2, round(top + LINE * number)), line, name=number == 0)

    def group(self, at: tuple[int, int], size: tuple[int, int], title: str, *lines: str) -> None:
        """A frame around other things, with its title at the top."""
        (x, y), (width, height) = at, size
        self._parts.append(f'<rect class="group" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>')
        for number, line in enumerate((title, *lines)):
            self.text((x + 10, y + 19 + LINE * number), line, name=number == 0, anchor="start")

    def text(self, at: tuple[int, int], line: str, *, name: bool = False, anchor: str = "middle") -> None:
        """One line; in backquotes it is code."""
        code = line.startswith("`")
        kind = "code" if code else "name" if name else "soft"
        shown = escape(line.strip("`"), quote=False)
        self._parts.append(f'<text class="{kind}" x="{at[0]}" y="{at[1]}" text-anchor="{anchor}">{shown}</text>')

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """A line through the points with a head at the last one, and with `both` one at the first."""
        path = " ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(points))
        start = f' marker-start="url(#qd-{self._name})"' if both else ""
        self._parts.append(f'<path class="arrow" d="{path}" marker-end="url(#qd-{self._name})"{start}/>')

    def svg(self) -> str:
        """The file."""
        marker = (
            f'<defs><marker id="qd-{self._name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        )
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="qd" viewBox="0 0 {WIDTH} {self._height}" role="img" '
            f'aria-labelledby="qd-{self._name}-t qd-{self._name}-d">\n'
            f'<title id="qd-{self._name}-t">{escape(self._title)}</title>\n'
            f'<desc id="qd-{self._name}-d">{escape(self._description)}</desc>\n'
            f"<style>{_STYLE}</style>\n{marker}\n{body}\n</svg>\n"
        )
