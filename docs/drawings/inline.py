"""A hook of mkdocs: a picture that is an SVG file becomes part of its page.

So its text can be selected and searched, and its colours are those of the page's light or dark mode. In the source tree
the same picture is an image, with the same words for those who cannot see it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_IMAGE = re.compile(r'<img alt="[^"]*" src="([^"]+\.svg)" ?/?>')


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page, whose links are relative to the page's file."""
    here = Path(config["docs_dir"], page.file.src_uri).parent

    def drawing(found: re.Match[str]) -> str:
        return f'<span class="qd-drawing">{(here / found[1]).read_text(encoding="utf-8")}</span>'

    return _IMAGE.sub(drawing, html)
