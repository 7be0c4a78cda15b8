"""A browser for the tests of the gateway's pages."""

from __future__ import annotations

from tests.browser import browser, page

__all__ = ["browser", "page"]
