"""Laws of pages of descriptions: all entries, in the order of their names, however small the frames are."""

from __future__ import annotations

from typing import Any

from qstate_conformance.laws import law
from qstate_conformance.server.fixture import JOB, NAMES
from qstate_conformance.server.messages import Description, Violation
from qstate_conformance.server.wire import Session, connect
from qstate_conformance.subjects import ServerSubject

_MOST_PAGES = 1000


def _page(session: Session, job: str | None, after: str) -> Description:
    found = session.describe(job, after=after)
    if not isinstance(found, Description):
        raise Violation(f"P-DESC-6: {found} for a page of descriptions")
    names = [_name(entry) for entry in found.entries]
    if names != sorted(set(names), key=str.encode) or any(name.encode() <= after.encode() for name in names):
        raise Violation(f"P-DESC-6: {names} after {after!r}")
    return found


def _name(entry: Any) -> str:
    return str(entry["name"] if "kind" in entry else entry["job"])


def _pages(session: Session, job: str | None) -> list[Description]:
    """Every page, from the beginning."""
    pages = [_page(session, job, "")]
    while pages[-1].more:
        if not pages[-1].entries or len(pages) > _MOST_PAGES:
            raise Violation(f"P-DESC-6: {pages[-1]} is followed by others")
        pages.append(_page(session, job, _name(pages[-1].entries[-1])))
    return pages


@law("P-DESC-6", "P-ATTR-1")
def test_pages_have_all_descriptions(subject: ServerSubject) -> None:
    """In small and in large frames, the pages have the descriptions that one answer has, in the order of names."""
    for max_frame in (None, 4096):
        with connect(subject) as wide, connect(subject, max_frame=max_frame) as session:
            whole = wide.describe(JOB)
            assert isinstance(whole, Description) and not whole.more, f"P-DESC-6: {whole!r:.200} without a place"
            if not _understands(session):
                return
            pages = _pages(session, JOB)
            found = [entry for page in pages for entry in page.entries]
            if sorted(found, key=_name) != sorted(whole.entries, key=_name) or {_name(one) for one in found} != NAMES:
                raise Violation(f"P-DESC-6: the pages have {[_name(entry) for entry in found]}")
            assert max_frame is None or len(pages) > 1, "P-DESC-6: one page of 4096 bytes has all states"
            jobs = [_name(entry) for page in _pages(session, None) for entry in page.entries]
            assert JOB in jobs and jobs == sorted(set(jobs)), f"P-DESC-6: {jobs}"


@law("P-DESC-6")
def test_a_page_begins_after_any_name(subject: ServerSubject) -> None:
    """A page begins with the first name after the one that is given, whether there is such a state or not."""
    with connect(subject) as session:
        if not _understands(session):
            return
        for after in (*NAMES, "m", "zzz", "Z", "\U0010ffff", "a" * 255):
            found = [_name(entry) for entry in _page(session, JOB, after).entries]
            wanted = sorted((name for name in NAMES if name.encode() > after.encode()), key=str.encode)
            if found != wanted[: len(found)] or (wanted and not found):
                raise Violation(f"P-DESC-6: {found} after {after!r}, where {wanted} come")


def _understands(session: Session) -> bool:
    """Whether the server knows `?after`: it may ignore the attribute, and answers with all entries then."""
    found = session.describe(JOB, after="\U0010ffff" * 255)
    return isinstance(found, Description) and not found.entries
