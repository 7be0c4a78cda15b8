"""The snapshot of a subscription: key groups are whole and of one epoch, whatever happens to their owner meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from qstate.errors import ConfigError
from qstate.keys import key_group
from qstate.protocol.messages import Page
from qstate.runtime.client.subscriptions import Place, SnapshotScan, Span, Wanted, place_in, token_of, wanted_of
from qstate.views import ViewMaker

GROUPS = 4
MAKER = ViewMaker({"name": "s", "kind": "value", "serializer": "msgpack"}, {})
BY_GROUP = {group: [key for key in map(str, range(60)) if key_group(key, GROUPS) == group] for group in range(GROUPS)}


def scan() -> SnapshotScan:
    return SnapshotScan(Wanted("job", "state", (), None, None, None, 1.0, 1.0, 1.0), GROUPS)


def page(epoch: int, keys: list[str], next_group: int, after: Any = None, view: bytes = b"v") -> Page:
    return Page(1, epoch, "f", view, next_group, after, len(keys), (), tuple(keys), (b"\x01",) * len(keys))


def keys_of(changes: Any) -> list[str]:
    return [change.key for change in changes]


def test_key_group_is_given_when_all_of_it_is_there() -> None:
    one = scan()
    first, second = BY_GROUP[0], BY_GROUP[1]
    assert keys_of(one.take(page(5, [*first, *second[:2]], 1, (None, second[1])), MAKER)) == first
    assert (one.request.start_group, one.request.after, one.request.view) == (1, (None, second[1]), b"v")
    assert keys_of(one.take(page(5, second[2:], 2), MAKER)) == second
    assert keys_of(one.take(page(5, [], 4, view=b""), MAKER)) == []
    assert one.over and one.spans == [Span(0, 4, 6)]


def test_owners_of_other_epochs_begin_other_ranges() -> None:
    one = scan()
    one.take(page(5, BY_GROUP[0], 2), MAKER)
    one.take(page(6, BY_GROUP[2], 4), MAKER)
    assert one.spans == [Span(0, 2, 6), Span(2, 4, 7)]


def test_key_group_that_an_owner_lost_halfway_is_read_again() -> None:
    one = scan()
    group = BY_GROUP[1]
    one.take(page(5, [*BY_GROUP[0], group[0]], 1, (None, group[0])), MAKER)
    one.forget_view()
    assert one.take(page(6, group[1:], 2), MAKER) == [], "half of it is of another epoch"
    assert (one.request.start_group, one.request.after) == (1, None)
    assert keys_of(one.take(page(6, group, 2), MAKER)) == group
    one.take(page(6, [], 4), MAKER)
    assert one.spans == [Span(0, 1, 6), Span(1, 4, 7)]


def test_token_is_read_as_it_was_written() -> None:
    for history in (None, 0, (1 << 63) - 1):
        place = Place((Span(0, 3, 7), Span(3, 128, 9)), history)
        assert place_in(token_of(place)) == place


NO_TOKENS = [
    "",
    "x",
    7,
    token_of(Place(())),
    token_of(Place((Span(3, 3, 0),))),
    token_of(Place((Span(0, 4, -1),))),
    token_of(Place((Span(0, 4, 1 << 63),))),
    token_of(Place((Span(0.0, 4, 0),))),  # type: ignore[arg-type]
    token_of(Place((Span(0, 4, 0),), "another")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("token", NO_TOKENS)
def test_text_that_is_no_token_is_refused(token: Any) -> None:
    options: dict[str, Any] = {"prefix": None, "from_epoch": None, "progress_s": 1.0, "patience_s": 1.0}
    with pytest.raises(ConfigError, match="token"):
        wanted_of(("job", "state"), None, None, ..., token=token, timeout_s=1.0, **options)
