"""Decides whether a program can use state that another one stored, and how to convert it first.

Rules of this module: it decides from a stored schema and a descriptor, before any row is processed; the caller acts on
the decision. It must not know where the state is stored. `conversions` has the rules for the types of values. The other
rules, in this order:

    kind, serializer name                  must be the same
    map key type                           must be the same or a wider one, such as object
    serializer version, schema version     must not be older than the stored one
    an older stored schema version         the descriptor's migration, if it has one, takes the place of the
                                           rules for types
    an older stored serializer version     the values are read by `loads_version` and rewritten
    a time-to-live is added                the values get a time: they count as written when the state is opened
    a time-to-live is removed              the values lose their times; those that have expired by then are left out
    another duration                       no conversion: values are stored with the times of their writes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import time_ns
from typing import Any

from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import JobError, SerializationError
from qstate.evolution.conversions import Conversion, Refusal, admission_to, conversion_between
from qstate.evolution.schema import StateSchema
from qstate.evolution.value_checks import Misfit
from qstate.serializers import DeclaredSerializer, MessagePackSerializer, Serializer
from qstate.values.ttl import is_expired, time_of, timed, untimed
from qstate.values.value_forms import same
from qstate.values.value_types import DictType, EnumType, RecordType, ScalarType, ValueType

__all__ = ["Converted", "Evolution", "Unchanged", "plan_evolution"]


#: From the stored bytes of a value to those to store.
Rewriting = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The stored bytes need no change: by their declared type, their values have the wanted type.

    So they may be stored under the wanted schema from now on, even if that changes later.
    """


@dataclass(frozen=True, slots=True)
class Converted:
    """The stored bytes must be rewritten, each value by itself: a value, a list's element, a map's value.

    `convert` raises `SerializationError` for a value that does not fit, and whatever the user's migration or
    serializer raises. It may be used by several threads at once if these may. A value that is `expired` is left out
    instead.
    """

    kind: StateKind
    convert: Rewriting
    expired: Callable[[bytes], bool] = lambda data: False


Evolution = Unchanged | Converted


def plan_evolution(stored: StateSchema, descriptor: StateDescriptor, *, now_ms: int | None = None) -> Evolution:
    """The conversion that a stored state needs before the descriptor's program can use it.

    `now_ms` is when the state is opened, in milliseconds since 1970-01-01 UTC (None: now). It matters only if a
    time-to-live is added or removed.

    Raises `JobError` when there is none: it names the state, the reason, both schemas and what to do.
    """
    wanted = StateSchema.of(descriptor)
    try:
        _check_frame(stored, wanted)
        convert = _value_converter(stored, wanted, descriptor)
    except Refusal as exc:
        raise JobError(
            f"state {descriptor.name!r} cannot be used as it was stored: {exc}. Stored: {stored}. Wanted: {wanted}. "
            "No state was changed and no row was processed"
        ) from None
    return _with_times(stored, wanted, convert, time_ns() // 1_000_000 if now_ms is None else now_ms)


def _value_converter(stored: StateSchema, wanted: StateSchema, descriptor: StateDescriptor) -> Rewriting | None:
    """The conversion of the serializer's bytes, None if they need none. Raises `Refusal`."""
    step = _step(stored, wanted, descriptor)
    if step is None and stored.serializer_version == wanted.serializer_version:
        return None
    return _converter(_reader(descriptor.serializer, stored.serializer_version), step, descriptor.serializer)


def _with_times(stored: StateSchema, wanted: StateSchema, convert: Rewriting | None, now_ms: int) -> Evolution:
    """The conversion of the stored values, of which either schema may say that they have times."""
    of_value = convert or same
    if stored.ttl_ms is None and wanted.ttl_ms is not None:
        return Converted(wanted.kind, lambda data: timed(now_ms, of_value(data)))
    if stored.ttl_ms is not None and wanted.ttl_ms is None:
        duration_ms = stored.ttl_ms
        return Converted(
            wanted.kind,
            lambda data: of_value(untimed(data)),
            lambda data: is_expired(time_of(data), duration_ms, now_ms),
        )
    if convert is None:
        return Unchanged()
    if stored.ttl_ms is None:
        return Converted(wanted.kind, convert)
    return Converted(wanted.kind, lambda data: timed(time_of(data), of_value(untimed(data))))


_SAME_FORM: tuple[set[type[ValueType]], ...] = ({DictType, RecordType}, {ScalarType, EnumType})
_NEW_NAME = "declare it as it was, or declare the new state under another name"
_MIGRATE = (
    "declare it as it was, give the descriptor a higher schema_version and a migration that makes new values of the "
    "old ones, or declare the new state under another name"
)


def _check_frame(stored: StateSchema, wanted: StateSchema) -> None:
    for what, old, new in (
        ("kind", stored.kind.value, wanted.kind.value),
        ("serializer", stored.serializer, wanted.serializer),
    ):
        if old != new:
            raise Refusal(f"its {what} was {old} and is {new}; {_NEW_NAME}")
    if stored.map_key_type and wanted.map_key_type and not _is_as_good(stored.map_key_type, wanted.map_key_type):
        raise Refusal(f"its map key type was {stored.map_key_type} and is {wanted.map_key_type}; {_NEW_NAME}")
    for what, stored_version, version in (
        ("serializer", stored.serializer_version, wanted.serializer_version),
        ("schema", stored.schema_version, wanted.schema_version),
    ):
        if stored_version > version:
            raise Refusal(
                f"it was stored with {what} version {stored_version}, which is newer than this program's {version}; "
                "run the program that stored it, or a newer one"
            )


def _is_as_good(stored: ValueType, wanted: ValueType) -> bool:
    """Whether all map keys of the stored type have the wanted type, too. Map keys are never converted."""
    try:
        return conversion_between(stored, wanted) is None
    except Refusal:
        return False


def _step(stored: StateSchema, wanted: StateSchema, descriptor: StateDescriptor) -> Conversion | None:
    if stored.schema_version < wanted.schema_version and descriptor.migration is not None:
        return _migration(descriptor.migration, stored.schema_version, wanted)
    try:
        # Only the default serializer stores a record as a dict, and an enum as text.
        kinds = {type(stored.value_type), type(wanted.value_type)}
        if kinds in _SAME_FORM and wanted.serializer != MessagePackSerializer.name:
            raise Refusal(f"{stored.value_type} cannot become {wanted.value_type}")
        return conversion_between(stored.value_type, wanted.value_type)
    except Refusal as exc:
        raise Refusal(f"{exc}; {_MIGRATE}") from None


def _migration(migrate: Callable[[Any, int], Any], version: int, wanted: StateSchema) -> Conversion:
    admit = admission_to(wanted.value_type)

    def convert(value: Any) -> Any:
        found = migrate(value, version)
        if found is None and wanted.kind is not StateKind.MAP:
            raise SerializationError(f"the migration made None of {value!r:.80}; a state cannot hold None")
        return admit(found)

    return convert


def _reader(serializer: Serializer, version: int) -> Callable[[bytes], Any]:
    """The function that reads stored bytes; with the default serializer, it returns the stored forms of values."""
    if version != serializer.version:
        if type(serializer).loads_version is Serializer.loads_version:
            raise Refusal(
                f"{type(serializer).__name__} is version {serializer.version} and has no loads_version to read bytes "
                f"of version {version}; add it, or run the program that stored them"
            )
        return lambda data: serializer.loads_version(data, version)
    if type(serializer).loads is DeclaredSerializer.loads:
        return MessagePackSerializer().loads
    return serializer.loads


def _converter(read: Callable[[bytes], Any], step: Conversion | None, serializer: Serializer) -> Rewriting:
    def convert(data: bytes) -> bytes:
        value = read(data)
        try:
            found = value if step is None else step(value)
        except Misfit as exc:
            raise SerializationError(f"the stored value {value!r:.80} does not fit: {exc}") from None
        if isinstance(serializer, DeclaredSerializer):
            found = serializer.revived(found)
        return serializer.dumps(found)

    return convert
