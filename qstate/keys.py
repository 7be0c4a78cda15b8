"""Keys, their hash, their key groups, and the subtasks that own these.

Rules of this module: it computes the hash of a key as Spark SQL does (`pmod(xxhash64(columns...), max_parallelism)`),
so that any language can compute it. It must not know what is stored under a key.

A key is the tuple of a keyed stream's key columns; a stream keyed by one column uses the bare value. Columns
are strings, binaries or integers (Spark's byte, short, int and long are all cast to bigint before hashing, so
that a client need not know the width). Null, floating-point and boolean columns are refused: null has no
owner, floats do not hash alike across languages (-0.0, NaN), and True equals 1 in Python.

    hash(c1, ..., cn) = xxh64(cn, seed=... xxh64(c2, seed=xxh64(c1, seed=42)))
    string -> its UTF-8 bytes, binary -> its bytes, integer -> 8 bytes, little-endian, two's complement
    group   = signed(hash) mod max_parallelism          (the mathematical modulus, never negative)
    subtask = group * parallelism // max_parallelism    (Flink's KeyGroupRangeAssignment)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import countOf
from struct import Struct
from typing import Any

import msgpack
from xxhash import xxh64_intdigest

from qstate.errors import ConfigError, WrongKeyType

__all__ = [
    "DEFAULT_MAX_PARALLELISM",
    "MAX_KEY_COLUMNS",
    "MAX_PARALLELISM_LIMIT",
    "ColumnType",
    "Key",
    "KeyGroupRange",
    "Namespace",
    "all_of_class",
    "check_column",
    "check_key",
    "check_max_parallelism",
    "decode_key",
    "decode_keys",
    "encode_key",
    "key_class",
    "key_encoder",
    "key_group",
    "key_grouper",
    "key_hash",
    "subtask_of",
]

Column = str | bytes | int
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
#: The beginning of a MessagePack array of up to 2**32 - 1 items.
_ARRAY = Struct(">BI")
_SIGN_BIT = 1 << 63
_TWO_64 = 1 << 64


class ColumnType(Enum):
    """The types a key column can have, by their Spark SQL name."""

    STRING = "string"
    BINARY = "binary"
    BIGINT = "bigint"


_COLUMN_TYPE_OF: dict[type, ColumnType] = {
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
    int: ColumnType.BIGINT,
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
        raise WrongKeyType(expected="string, binary or bigint", got=type(value).__name__)
    if kind is ColumnType.BIGINT and not -_SIGN_BIT <= value < _SIGN_BIT:
        raise WrongKeyType(expected="an integer of 64 bits", got="a larger one")
    if kind is ColumnType.STRING and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WrongKeyType(expected="text that UTF-8 can encode", got="a lone surrogate") from None
    return kind


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
    """The Python class of keys of one column; None for several columns and for unknown types."""
    return None if types is None or len(types) != 1 else _CLASS_OF[types[0]]


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
        else:
            data = column  # type: ignore[assignment]
        seed = xxh64_intdigest(data, seed)
    return seed


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


def encode_key(key: Namespace) -> bytes:
    """The key as MessagePack: a scalar, or an array for several columns; nil for the void namespace.

    The encoding is the shortest one, so equal keys give equal bytes.
    """
    packed: bytes = msgpack.packb(key)
    return packed


def key_encoder() -> Callable[[Namespace], bytes]:
    """`encode_key` for one thread: it keeps its buffer, so it is faster for many keys."""
    encode: Callable[[Namespace], bytes] = msgpack.Packer().pack
    return encode


def decode_key(data: bytes) -> Namespace:
    """The inverse of `encode_key`, for bytes that qstate wrote itself."""
    key: Namespace = msgpack.unpackb(data, use_list=False)
    return key


def decode_keys(data: Sequence[bytes]) -> Sequence[Namespace]:
    """`decode_key` of each. It decodes all keys as one array, in an eighth of the time."""
    keys: Sequence[Namespace] = msgpack.unpackb(_ARRAY.pack(0xDD, len(data)) + b"".join(data), use_list=False)
    return keys
