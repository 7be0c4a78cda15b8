"""Clients that lose their place in a scan, believe any page, or ask for one again when they must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from qstate.errors import DeadlineExceeded, QueryError, ScanExpired, Unavailable
from qstate.protocol import connection
from qstate.protocol.messages import Page, Scan
from qstate.runtime.client import scanning
from qstate.runtime.client.owner_operations import ScanOperation
from qstate.runtime.client.scanning import Scanner
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from tests.defects.clients.seeds import defect, ignore_rules_of


def _takes(spoiled: Callable[[Scanner, Page], Page]) -> None:
    """Have scans take another page than the one that came."""
    take = Scanner.take
    Scanner.take = lambda self, page, known: take(self, spoiled(self, page), known)  # type: ignore[method-assign]


@defect("scans.each_page_is_asked_for_where_the_one_before_ended")
def forgets_the_view() -> None:
    _takes(lambda scanner, page: page._replace(view=b""))


@defect("scans.each_page_is_asked_for_where_the_one_before_ended", PythonAsyncDriver)
def keeps_the_first_view() -> None:
    _takes(lambda scanner, page: page._replace(view=scanner._view or page.view))


@defect("scans.each_page_is_asked_for_where_the_one_before_ended")
def goes_on_with_the_group_alone() -> None:
    _takes(lambda scanner, page: page._replace(after=None))


@defect("scans.each_page_is_asked_for_where_the_one_before_ended")
def is_live_after_the_first_page() -> None:
    take = Scanner.take

    def taken(self: Scanner, *args: Any) -> Any:
        self.query = replace(self.query, options={})
        return take(self, *args)

    Scanner.take = taken  # type: ignore[method-assign]


@defect("scans.a_page_without_keys_is_no_end")
def takes_a_page_without_keys_for_the_end() -> None:
    take = Scanner.take

    def taken(self: Scanner, page: Page, known: Any) -> Any:
        found = take(self, page, known)
        self.over = self.over or not page.selected
        return found

    Scanner.take = taken  # type: ignore[method-assign]


@defect("scans.a_scan_says_what_is_selected")
def takes_the_void_namespace_for_every_one() -> None:
    _asks(lambda asked: asked._replace(namespaces=() if asked.namespaces == (None,) else asked.namespaces))


@defect("scans.a_scan_says_what_is_selected")
def sends_text_for_columns() -> None:
    def asked(scan: Any) -> Any:
        columns = scan.prefix
        return scan._replace(prefix=columns[0]) if isinstance(columns, tuple) and len(columns) == 1 else scan

    _asks(asked)


def _asks(spoiled: Callable[[Any], Any]) -> None:
    request = Scanner.request.fget
    assert request is not None
    Scanner.request = property(lambda self: spoiled(request(self)))  # type: ignore[method-assign, assignment]


@defect("scans.a_limit_counts_the_keys_of_all_pages")
def asks_each_page_for_all_keys() -> None:
    _takes(lambda scanner, page: page._replace(selected=0))


@defect("scans.entries_keep_the_epochs_and_failures_of_their_pages")
def takes_a_scan_for_one_snapshot() -> None:
    def first(scanner: Scanner, page: Page) -> Page:
        if scanner.epoch not in (None, page.epoch):
            raise ScanExpired()
        return page

    _takes(first)


@defect("scans.entries_keep_the_epochs_and_failures_of_their_pages")
def leaves_out_values_that_fail() -> None:
    entries = Scanner._entries

    def sound(self: Scanner, *args: Any) -> Iterator[Any]:
        return (entry for entry in entries(self, *args) if not isinstance(entry, QueryError))

    Scanner._entries = sound  # type: ignore[method-assign]


@defect("scans.values_of_another_description_are_asked_for_again")
def reads_pages_by_the_known_description() -> None:
    answered = ScanOperation._on_other_answer

    def known(self: Any, part: int, message: Any, now: float) -> None:
        if type(message) is Page and self._known is not None:
            message = message._replace(fingerprint=self._known.table.fingerprint)
        answered(self, part, message, now)

    ScanOperation._on_other_answer = known  # type: ignore[method-assign]


@defect("scans.a_page_that_is_no_answer_ends_the_connection")
def believes_any_page() -> None:
    connection._CHECKS[Scan] = lambda request, page: None


@defect("scans.a_page_that_is_no_answer_ends_the_connection", PythonAsyncDriver)
def believes_any_page_in_the_asyncio_client() -> None:
    connection._CHECKS[Scan] = lambda request, page: None


@defect("scans.a_page_that_is_no_answer_ends_the_connection")
def believes_that_a_page_goes_on() -> None:
    connection._same_place = lambda one, other: False


@defect("scans.a_page_of_an_earlier_epoch_than_demanded_ends_the_connection")
def believes_that_pages_are_of_the_epoch() -> None:
    check = connection._CHECKS[Scan]

    def demanding_nothing(request: Any, page: Any) -> None:
        options = {name: value for name, value in request.options.items() if name != "min_epoch"}
        check(request._replace(options=options), page)

    connection._CHECKS[Scan] = demanding_nothing


@defect("scans.a_page_that_breaks_its_table_ends_the_connection")
def ignores_what_concerns_several_fields_of_a_page() -> None:
    ignore_rules_of(Page)


@defect("scans.a_page_is_asked_for_again_at_most_twice_and_not_at_once")
def asks_for_a_page_four_times() -> None:
    scanning.TRIES = 4


@defect("scans.a_page_is_asked_for_again_at_most_twice_and_not_at_once", PythonAsyncDriver)
def asks_for_a_page_again_at_once() -> None:
    scanning.PAUSE_S = 0.0


@defect("scans.a_scan_that_survives_a_loss_has_each_key_once")
def begins_again_after_a_loss() -> None:
    failed = Scanner.failed

    def again(self: Scanner, error: QueryError) -> float:
        if self._failures == 0 and isinstance(error, Unavailable):
            self.count = 0
            self._lost = True  # type: ignore[attr-defined]
        return failed(self, error)

    def twice(scanner: Scanner, page: Page) -> Page:
        if scanner.__dict__.pop("_lost", False):
            return page._replace(keys=(*page.keys, *page.keys), results=(*page.results, *page.results))
        return page

    Scanner.failed = again  # type: ignore[method-assign]
    _takes(twice)


@defect("scans.a_view_that_has_expired_is_not_sent_again")
def sends_a_view_that_has_expired_again() -> None:
    _asks_again_after(ScanExpired)


@defect("scans.a_page_that_does_not_come_fails_at_its_deadline")
def asks_again_after_the_deadline() -> None:
    _asks_again_after(DeadlineExceeded)


def _asks_again_after(kind: type[QueryError]) -> None:
    failed = Scanner.failed

    def again(self: Scanner, error: QueryError) -> float:
        return failed(self, Unavailable() if isinstance(error, kind) else error)

    Scanner.failed = again  # type: ignore[method-assign]
