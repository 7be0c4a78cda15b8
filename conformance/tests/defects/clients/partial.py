"""Clients that put together what does not belong together, believe any part, or follow no pages."""

from __future__ import annotations

from typing import Any

from qstate.protocol import connection
from qstate.protocol.messages import Describe, Description, GetPart, Part
from qstate.runtime.client.results.descriptions import Listing
from qstate.runtime.client.results.value_parts import AskedPart, Pieces
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from tests.defects.clients.seeds import defect


@defect("parts.a_value_that_has_changed_is_read_again")
def joins_pieces_of_any_version() -> None:
    take = Pieces.take

    def taken(self: Pieces, part: Part, known: Any) -> bool:
        first = self._found[0] if self._found else part
        return take(self, part._replace(version=first.version, total=first.total), known)

    Pieces.take = taken  # type: ignore[method-assign]


@defect("parts.pieces_of_one_version_are_put_together", PythonAsyncDriver)
def takes_the_first_piece_for_the_whole() -> None:
    take = Pieces.take
    Pieces.take = lambda self, part, known: take(  # type: ignore[method-assign]
        self, part._replace(total=len(part.result or b"")), known
    )


@defect("parts.a_part_that_is_no_answer_ends_the_connection")
def believes_any_part() -> None:
    connection._CHECKS[GetPart] = lambda request, answer: None


@defect("parts.a_part_is_asked_for_and_shown")
def asks_for_pages_from_the_beginning() -> None:
    page = AskedPart.page
    AskedPart.page = lambda self, after, limit: page(self, None, limit)  # type: ignore[method-assign]


@defect("parts.pages_of_descriptions_are_followed", PythonAsyncDriver)
def lists_one_page() -> None:
    take = Listing.take
    Listing.take = lambda self, page: take(self, page) or True  # type: ignore[method-assign]


@defect("parts.a_page_of_descriptions_that_leads_nowhere_ends_the_connection")
def follows_pages_in_a_circle() -> None:
    connection._CHECKS[Describe] = lambda request, answer: None
    take = Listing.take

    def taken(self: Listing, page: Description) -> bool:
        return not page.entries or take(self, page)

    Listing.take = taken  # type: ignore[method-assign]
