"""Keys, their hash, their key groups, and the subtasks that own these.

Rules of this module: it computes the hash of a key as Spark SQL does (`pmod(xxhash64(columns...), max_parallelism)`),
so that any language can compute it. It must not know what is stored under a key.

A key is the tuple of a keyed stream's key columns; a stream keyed by one column uses the bare value. Numbers are
widened before they are hashed, so that a client need not know their width: Spark's byte, short, int and long to bigint,
decimals to 38 digits. Null and floating-point columns are refused: null has no owner, and floats do not hash alike
across languages (-0.0, NaN).

    column          Python value             MessagePack                        hashed bytes
    string          str                      str                                its UTF-8 bytes
    binary          bytes                    bin                                its bytes
    bigint          int of 64 bits           int                                8 bytes, little-endian, two's complement
    boolean         bool                     bool                               4 bytes, little-endian: 1 or 0
    date            date                     ext  3: "2020-12-31"               4 bytes, little-endian: days since 1970
    timestamp       datetime with a zone     ext -1: MessagePack's timestamp    8 bytes, little-endian: microseconds
    decimal(38,s)   Decimal, s decimals      ext  4: "12.50", s decimals        unscaled number, big-endian, shortest

    hash(c1, ..., cn) = xxh64(cn, seed=... xxh64(c2, seed=xxh64(c1, seed=42)))
    group   = signed(hash) mod max_parallelism          (the mathematical modulus, never negative)
    subtask = group * parallelism // max_parallelism    (Flink's KeyGroupRangeAssignment)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from operator import countOf
from struct import Struct
from typing import Any

import msgpack
from xxhash import xxh64_intdigest

from qstate.errors import ConfigError, WrongKeyType
from qstate.values.extension_types import DATE_EXT, DECIMAL_EXT, PACKER_BYTES

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "MAX_KEY_COLUMNS",
    "MAX_PARALLELISM_LIMIT",
    "Column",
    "ColumnType",
    "Key",
    "KeyGroupRange",
    "Namespace",
    "all_of_class",
    "check_column",
    "check_key",
    "check_max_parallelism",
    "decode_extension",
    "decode_key",
    "decode_keys",
    "encode_key",
    "key_class",
    "key_encoder",
    "key_group",
    "key_grouper",
    "key_hash",
    "key_identity",
    "subtask_of",
]

Column = str | bytes | int | bool | date | datetime | Decimal
#: A bare column value for a stream keyed by one column, a tuple for several.
Key = Column | tuple[Column, ...]
#: A namespace separates values of one key, such as those of windows; None is the void namespace.
Namespace = Key | None

#: Flink's default; an upper bound on parallelism for the life of the state.
DEFAULT_MAX_PARALLELISM = 128
MAX_PARALLELISM_LIMIT = 32768
MAX_KEY_COLUMNS = 64
#: The seed of Spark's `xxhash64` (org.apache.spark.sql.catalyst.expressions.XxHash64).
SPARK_SEED = 42

_INT64 = Struct("<q")
_INT32 = Struct("<i")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY = _EPOCH.toordinal()
_MICROSECOND = timedelta(microseconds=1)
#: The most digits of a decimal in Spark.
_MOST_DIGITS = 38
#: The beginning of a MessagePack array of up to 2**32 - 1 items.
_ARRAY = Struct(">BI")
_SIGN_BIT = 1 << 63
_TWO_64 = 1 << 64


class ColumnType(Enum):
    """The types a key column can have, by their Spark SQL name: also `DECIMAL_0`, `decimal(38,0)`, to `DECIMAL_38`.

    Numbers that differ in their decimals are different keys, so each scale is a type.
    """

    _ignore_ = "scale"

    STRING = "string"
    BINARY = "binary"
    BIGINT = "bigint"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    for scale in range(_MOST_DIGITS + 1):
        vars()[f"DECIMAL_{scale}"] = f"decimal({_MOST_DIGITS},{scale})"

    @classmethod
    def decimal(cls, scale: int) -> ColumnType:
        """The type of decimals with so many decimals."""
        return cls(f"decimal({_MOST_DIGITS},{scale})")

    @property
    def is_decimal(self) -> bool:
        return str(self.value).startswith("decimal")

    @property
    def widened(self) -> bool:
        """Whether columns are cast to this type before they are hashed."""
        return self is ColumnType.BIGINT or self.is_decimal


_COLUMN_TYPE_OF: dict[type, ColumnType] = {
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
    int: ColumnType.BIGINT,
    bool: ColumnType.BOOLEAN,
    date: ColumnType.DATE,
}
_CLASS_OF = {kind: python_class for python_class, kind in _COLUMN_TYPE_OF.items()}


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups `start` (inclusive) to `stop` (exclusive)."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= MAX_PARALLELISM_LIMIT:
            raise ConfigError(f"a key-group range needs 0 <= start < stop <= {MAX_PARALLELISM_LIMIT}, got {self}")

    def __contains__(self, group: object) -> bool:
        return isinstance(group, int) and self.start <= group < self.stop

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def of_subtask(cls, subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        """The groups whose `subtask_of` is `subtask`: ceil(i * max / p) up to ceil((i + 1) * max / p)."""
        start = -(-subtask * max_parallelism // parallelism)
        stop = -(-(subtask + 1) * max_parallelism // parallelism)
        return cls(start, stop)


def check_max_parallelism(max_parallelism: int) -> int:
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigError(f"max_parallelism must be 1 to {MAX_PARALLELISM_LIMIT}, got {max_parallelism}")
    return max_parallelism


def subtask_of(group: int, parallelism: int, max_parallelism: int) -> int:
    return group * parallelism // max_parallelism


def check_column(value: Any) -> ColumnType:
    """The column type of a value. Raises `WrongKeyType` with the expected and the actual type."""
    kind = _COLUMN_TYPE_OF.get(type(value))
    if kind is None:
        return _type_of_moment_or_decimal(value)
    if kind is ColumnType.BIGINT and not -_SIGN_BIT <= value < _SIGN_BIT:
        raise WrongKeyType(expected="an integer of 64 bits", got="a larger one")
    if kind is ColumnType.STRING and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WrongKeyType(expected="text that UTF-8 can encode", got="a lone surrogate") from None
    return kind


def _type_of_moment_or_decimal(value: Any) -> ColumnType:
    if type(value) is datetime:
        try:
            naive = value.utcoffset() is None
            value.astimezone(timezone.utc)
        except Exception:  # out of range in UTC, or an error in the time zone's own code
            raise WrongKeyType(expected="a moment of the years 1 to 9999 in UTC", got="another one") from None
        if naive:
            raise WrongKeyType(expected="a datetime with a time zone", got="one without")
        return ColumnType.TIMESTAMP
    if type(value) is Decimal:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or not -_MOST_DIGITS <= exponent <= 0:
            raise WrongKeyType(expected=f"a decimal number with 0 to {_MOST_DIGITS} decimals", got=str(value)[:80])
        if len(value.as_tuple().digits) > _MOST_DIGITS:
            raise WrongKeyType(expected=f"a decimal number of at most {_MOST_DIGITS} digits", got="a longer one")
        return ColumnType.decimal(-exponent)
    raise WrongKeyType(expected=_COLUMNS, got=type(value).__name__)


#: The types of columns, for people.
_COLUMNS = "string, binary, bigint, boolean, date, timestamp or decimal"


def _unscaled(value: Decimal) -> int:
    """The digits of a number with at most 38 decimals as one integer, exact whatever the context's precision is."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def check_key(key: Any, types: Sequence[ColumnType] | None = None) -> None:
    """Raise `WrongKeyType` unless `key` is a valid key and has these column types, if they are given."""
    columns = key if type(key) is tuple else (key,)
    if not columns or (type(key) is tuple and len(key) == 1):
        raise WrongKeyType(expected="a bare value for one column, a tuple for several", got=f"tuple of {len(columns)}")
    if len(columns) > MAX_KEY_COLUMNS:
        raise WrongKeyType(expected=f"at most {MAX_KEY_COLUMNS} columns", got=f"tuple of {len(columns)}")
    found = [check_column(column) for column in columns]
    if types is not None and found != list(types):
        raise WrongKeyType(
            expected=", ".join(kind.value for kind in types),
            got=", ".join(kind.value for kind in found),
        )


def key_class(types: Sequence[ColumnType] | None) -> type | None:
    """The Python class of keys of one column; None for several columns, and if the class alone does not tell."""
    return None if types is None or len(types) != 1 else _CLASS_OF.get(types[0])


def all_of_class(keys: Sequence[Any], wanted: type) -> bool:
    """Whether all keys, at least one, are of that class and, if integers, in range. Lone surrogates pass."""
    if type(keys[0]) is not wanted or (len(keys) > 1 and countOf(map(type, keys), wanted) != len(keys)):
        return False
    return wanted is not int or (min(keys) >= -_SIGN_BIT and max(keys) < _SIGN_BIT)


def key_hash(key: Key) -> int:
    """Spark's `xxhash64` of the key columns, as an unsigned number of 64 bits."""
    seed = SPARK_SEED
    for column in key if type(key) is tuple else (key,):
        if type(column) is str:
            data = column.encode()
        elif type(column) is int:
            data = _INT64.pack(column)
        elif type(column) is bytes:
            data = column
        else:
            data = _hashed_bytes(column)
        seed = xxh64_intdigest(data, seed)
    return seed


def _hashed_bytes(column: Any) -> bytes:
    if type(column) is bool:
        return _INT32.pack(column)
    if type(column) is date:
        return _INT32.pack(column.toordinal() - _FIRST_DAY)
    if type(column) is datetime:
        return _INT64.pack((column - _EPOCH) // _MICROSECOND)
    unscaled = _unscaled(column)
    # As Java's BigInteger.toByteArray: the fewest bytes that hold the sign, too.
    return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


def key_group(key: Key, max_parallelism: int) -> int:
    """The key group of a key. The key must be valid (`check_key`)."""
    unsigned = key_hash(key)
    return (unsigned - _TWO_64 if unsigned >= _SIGN_BIT else unsigned) % max_parallelism


def key_grouper(max_parallelism: int) -> Callable[[Key], int]:
    """`key_group` for one `max_parallelism`, for hot paths: text keys skip the loop over columns."""
    wrap = _TWO_64 % max_parallelism

    def group(key: Key) -> int:
        unsigned = xxh64_intdigest(key.encode(), SPARK_SEED) if type(key) is str else key_hash(key)
        return (unsigned - wrap if unsigned >= _SIGN_BIT else unsigned) % max_parallelism

    return group


def key_identity(key: Namespace) -> Any:
    """What tells keys of any types apart in a dict, where True equals 1 and Decimal("1.0") equals 1.

    The keys of one keyed stream have the same types, so they need no identity.
    """
    types = map(type, key) if type(key) is tuple else (type(key),)
    return key if _AMBIGUOUS.isdisjoint(types) else (encode_key(key),)  # no key is a tuple of one


_AMBIGUOUS = frozenset((bool, Decimal))


def encode_key(key: Namespace) -> bytes:
    """The key as MessagePack: a scalar, or an array for several columns; nil for the void namespace.

    The encoding is the shortest one, so equal keys give equal bytes.
    """
    packed: bytes = msgpack.packb(key, **_PACKING)
    return packed


def key_encoder() -> Callable[[Namespace], bytes]:
    """`encode_key` for one thread: it keeps its buffer, so it is faster for many keys."""
    encode: Callable[[Namespace], bytes] = msgpack.Packer(**_PACKING).pack
    return encode


def decode_key(data: bytes) -> Namespace:
    """The inverse of `encode_key`, for bytes that qstate wrote itself; timestamps are in UTC."""
    key: Namespace = msgpack.unpackb(data, use_list=False, ext_hook=_of_extension, timestamp=3)
    return key


def decode_keys(data: Sequence[bytes]) -> Sequence[Namespace]:
    """`decode_key` of each. It decodes all keys as one array, in an eighth of the time."""
    array = _ARRAY.pack(0xDD, len(data)) + b"".join(data)
    keys: Sequence[Namespace] = msgpack.unpackb(array, use_list=False, ext_hook=_of_extension, timestamp=3)
    return keys


def decode_extension(data: bytes) -> Column:
    """The column of a MessagePack extension type in any of its forms, from anywhere. Raises `WrongKeyType`."""
    try:
        found = msgpack.unpackb(data, timestamp=0)
        if isinstance(found, msgpack.Timestamp):
            column: Column = found.to_datetime()
            sound = found.nanoseconds % 1000 == 0
        else:
            payload = found.data if len(found.data) <= _MOST_PAYLOAD else b""
            column = _of_extension(found.code, payload)
            check_column(column)
            sound = _extension(column).data == payload
    except (ValueError, OverflowError, TypeError, ArithmeticError, msgpack.UnpackException):
        sound = False
    if not sound:
        raise WrongKeyType(expected="a date, a timestamp of microseconds or a decimal", got="another extension type")
    return column


#: The most bytes of a date or a decimal: a sign, 38 digits, a zero and a point.
_MOST_PAYLOAD = _MOST_DIGITS + 3


def _extension(column: Any) -> msgpack.ExtType:
    if type(column) is date:
        return msgpack.ExtType(DATE_EXT, column.isoformat().encode())
    if type(column) is Decimal:
        return msgpack.ExtType(DECIMAL_EXT, _decimal_text(column).encode())
    raise TypeError(f"{type(column).__name__} cannot be in a key")


def _decimal_text(value: Decimal) -> str:
    """The number without an exponent, with exactly its decimals; zero has no sign."""
    unscaled, scale = _unscaled(value), -int(value.as_tuple().exponent)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, decimals = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' * (unscaled < 0)}{whole}{'.' * bool(scale)}{decimals}"


#: The options for writing keys.
_PACKING: dict[str, Any] = {"default": _extension, "datetime": True, "buf_size": PACKER_BYTES}


def _of_extension(code: int, payload: bytes) -> Any:
    if code == DATE_EXT:
        return date.fromisoformat(payload.decode())
    if code == DECIMAL_EXT:
        return Decimal(payload.decode())
    return msgpack.ExtType(code, payload)
