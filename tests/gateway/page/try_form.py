"""A form of the page that tries the API: filled in and sent."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

__all__ = ["sent_form"]


def sent_form(page: Page, url: str, operation: str, *fields: str) -> Locator:
    """The form of an operation of the gateway at `url`, sent with the job, the state and the key."""
    page.goto(f"{url}try.html")
    page.locator("summary", has_text=operation).click()
    form = page.locator("details[open]")
    for name, text in zip(("job", "state", "key"), fields, strict=True):
        form.locator(f"[name={name}]").first.fill(text)
    form.get_by_role("button").click()
    return form
