"""What an epoch's rows are known by."""

from __future__ import annotations

import pytest

from qstate.checkpoint.log.epoch_input import EpochInput, digest_of_columns

SEALED = EpochInput(rows=3, digest=5, columns=7)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (EpochInput(3, 5, 7), True),
        (EpochInput(3, 6, 7), False),
        (EpochInput(4, 5, 7), False),
        (EpochInput(3, 6, 8), True),  # of other columns: only the number can be compared
        (EpochInput(4, 6, 8), False),
    ],
)
def test_rows_are_compared_as_far_as_their_columns_permit(given: EpochInput, same: bool) -> None:
    assert SEALED.may_be(given) is same


def test_columns_are_told_apart_by_name_type_and_order() -> None:
    columns = [
        [("a", "int64"), ("b", "string")],
        [("b", "string"), ("a", "int64")],
        [("a", "int64")],
        [("a", "string")],
    ]
    assert len({digest_of_columns(one) for one in columns}) == len(columns)
