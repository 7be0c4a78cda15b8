"""Which columns can be keys; each other type is refused with its own reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from qstate.errors import JobError
from qstate.keys import ColumnType
from tests.operators.running import Calls, spec


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (pa.string(), ColumnType.STRING),
        (pa.large_string(), ColumnType.STRING),
        (pa.binary(), ColumnType.BINARY),
        (pa.int8(), ColumnType.BIGINT),
        (pa.int64(), ColumnType.BIGINT),
        (pa.bool_(), ColumnType.BOOLEAN),
        (pa.date32(), ColumnType.DATE),
        (pa.timestamp("us", "UTC"), ColumnType.TIMESTAMP),
        (pa.timestamp("us", "Europe/London"), ColumnType.TIMESTAMP),
        (pa.decimal128(10, 2), ColumnType("decimal(38,2)")),
        (pa.decimal128(38, 0), ColumnType("decimal(38,0)")),
    ],
    ids=str,
)
def test_a_column_has_the_type_of_its_keys(kind: pa.DataType, found: ColumnType) -> None:
    assert spec(Calls(print), input_schema=pa.schema([("key", kind)])).key_types == (found,)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.float64(), "'key' is double, .*0.0 and -0.0.*cast it to bigint, which cuts fractions off, or to string"),
        (pa.float32(), "'key' is float, .*0.0 and -0.0"),
        (pa.timestamp("us"), r"'key' is timestamp_ntz, .*names no moment; cast it to timestamp"),
        (pa.struct([("a", pa.int64())]), r'\'key\' is a struct, .*"column\.field"'),
        (pa.list_(pa.int64()), r"'key' is an array or a map, .*F\.to_json"),
        (pa.map_(pa.string(), pa.int64()), r"'key' is an array or a map, .*F\.to_json"),
        (pa.null(), r"'key' is of no type \(void\)"),
        (pa.uint64(), "'key' is uint64, .*cast it to string"),
        (pa.duration("us"), r"'key' is duration\[us\], .*cast it to string"),
    ],
    ids=str,
)
def test_another_type_is_refused_with_its_reason_and_a_remedy(kind: pa.DataType, message: str) -> None:
    with pytest.raises(JobError, match=f"operator 'alerts': key column {message}"):
        spec(Calls(print), input_schema=pa.schema([("key", kind)]))
    with pytest.raises(JobError, match=message.partition(",")[0]):
        spec(Calls(print), input_schema=pa.schema([("other", pa.string()), ("key", kind)]), key_columns=("key",))
