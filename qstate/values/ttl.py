"""Time-to-live: how long a value of a state counts, and the form of a value that is stored with its time.

Rules of this module: values, bytes and times in milliseconds since 1970-01-01 UTC. It knows no clock, and no state.

The form stores the time at which a value was last written (with `on_read_and_write` also: read), and not the time at
which it expires. So a program may change the duration without a conversion of the stored values:

    0        8
    +--------+----------------------------+
    | time   | the serializer's bytes     |
    +--------+----------------------------+
     u64 LE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from struct import Struct
from struct import error as StructError
from typing import Any, Literal, get_args

from qstate.errors import ConfigError, SerializationError
from qstate.serializers import Serializer

__all__ = ["TIME_BYTES", "StateTtl", "TimedSerializer", "is_expired", "time_of", "timed", "untimed"]

Refresh = Literal["on_write", "on_read_and_write"]
Visibility = Literal["never_expired", "until_cleaned"]

_TIME = Struct("<Q")
#: The number of bytes before the serializer's bytes.
TIME_BYTES = _TIME.size
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class StateTtl:
    """How long a value of a state counts: `ttl=StateTtl(timedelta(minutes=10))` on a descriptor.

    Each value expires by itself: the value or accumulator of a key, an element of a list, an entry of a map. It expires
    when `duration` (at least a millisecond) has passed since it was last written; with `refresh="on_read_and_write"`,
    since the function last wrote or read it.

    Queries, dumps and standbys never show an expired value. By default a function does not see one either. With
    `visibility="until_cleaned"` it sees expired values until they are removed.

    Raises `ConfigError` for arguments that cannot work.
    """

    duration: timedelta
    refresh: Refresh = field(default="on_write", kw_only=True)
    visibility: Visibility = field(default="never_expired", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.duration, timedelta):
            raise ConfigError(
                f"the duration of a time-to-live is a timedelta, as in StateTtl(timedelta(minutes=10)), got "
                f"{self.duration!r}"
            )
        if self.duration < _MILLISECOND:
            raise ConfigError(
                f"the duration of a time-to-live must be at least a millisecond, got {self.duration!r}; leave ttl out "
                "for a state that does not expire"
            )
        for what, found, known in (
            ("refresh", self.refresh, get_args(Refresh)),
            ("visibility", self.visibility, get_args(Visibility)),
        ):
            if found not in known:
                raise ConfigError(f"{what} of a time-to-live is {' or '.join(map(repr, known))}, got {found!r}")

    @property
    def duration_ms(self) -> int:
        """The duration in whole milliseconds."""
        return self.duration // _MILLISECOND


def is_expired(written_ms: int, duration_ms: int, now_ms: int) -> bool:
    """Whether a value that was last written at `written_ms` has expired at `now_ms`."""
    return now_ms - written_ms >= duration_ms


def timed(time_ms: int, data: bytes) -> bytes:
    """The stored form of a value: its time and the serializer's bytes."""
    return _TIME.pack(time_ms) + data


def time_of(data: bytes) -> int:
    """The time in the stored form of a value. Raises `SerializationError` for bytes that are too few for one."""
    try:
        found: int = _TIME.unpack_from(data)[0]
    except StructError:
        raise SerializationError(f"a value with a time has {TIME_BYTES} bytes or more, got {data!r}") from None
    return found


def untimed(data: bytes) -> bytes:
    """The serializer's bytes in the stored form of a value."""
    return data[TIME_BYTES:]


class TimedSerializer(Serializer):
    """The serializer of a state whose values are stored with their times: its values are pairs (time, value)."""

    name = "timed"

    def __init__(self, inner: Serializer) -> None:
        self._inner = inner
        self.version = inner.version  # type: ignore[misc]  # that of a class, elsewhere

    def dumps(self, value: Any) -> bytes:
        time_ms, inner = value
        return timed(time_ms, self._inner.dumps(inner))

    def loads(self, data: bytes) -> Any:
        return time_of(data), self._inner.loads(untimed(data))

    def dumper(self) -> Callable[[Any], bytes]:
        dump, pack = self._inner.dumper(), _TIME.pack
        return lambda pair: pack(pair[0]) + dump(pair[1])

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        pairs = list(values)
        dumped = self._inner.dump_all([value for _, value in pairs])
        return [timed(time_ms, data) for (time_ms, _), data in zip(pairs, dumped, strict=True)]

    def load_all(self, data: Sequence[bytes]) -> list[Any]:
        return list(zip(map(time_of, data), self._inner.load_all(list(map(untimed, data))), strict=True))
