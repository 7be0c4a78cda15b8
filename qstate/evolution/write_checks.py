"""Checks that a function writes values of the declared types, which can be read back unchanged.

Rules of this module: descriptors in, descriptors out. The serializer that a backend gets with the descriptor makes the
check. So every backend makes it, for each entry that an epoch changed, and none makes it for reads. Stored values are
not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from qstate.descriptors import StateDescriptor
from qstate.errors import SerializationError
from qstate.evolution.value_checks import PLAIN, Misfit, Rule, rule_of
from qstate.serializers import DeclaredSerializer, MessagePackSerializer, Serializer
from qstate.values.value_types import OBJECT, RecordType, ValueType, value_type_of

__all__ = ["CheckedSerializer", "WriteChecks", "checked", "null_refusal"]

#: The `dumps` of the default serializers. A serializer that overrides it has its own rules.
_DEFAULT_FORMS = (MessagePackSerializer.dumps, DeclaredSerializer.dumps)


class WriteChecks:
    """The checks of one function's states. They are turned on with the function's first row."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on

    def of(self, descriptor: StateDescriptor) -> StateDescriptor:
        """The descriptor with a serializer that refuses invalid values."""
        declared = value_type_of(descriptor.value_type)
        rule = rule_of(declared, PLAIN if type(descriptor.serializer).dumps in _DEFAULT_FORMS else None)
        if rule is None:
            return descriptor
        return replace(descriptor, serializer=CheckedSerializer(descriptor.serializer, declared, rule, self))


def checked(descriptor: StateDescriptor) -> StateDescriptor:
    """The descriptor that a backend gets while a function runs: its serializer refuses invalid values."""
    return WriteChecks(on=True).of(descriptor)


def null_refusal(descriptor: StateDescriptor) -> str | None:
    """What to do so that an entry of a map state can have the value None; None: it can have it already."""
    declared = value_type_of(descriptor.value_type)
    rule = rule_of(declared, None)
    if rule is not None and type(None) not in rule.exact:
        return f"declare {declared.name if isinstance(declared, RecordType) else declared} | None"
    serializer = descriptor.serializer
    try:
        is_read_back = serializer.loads(serializer.dumps(None)) is None
    except Exception:  # a serializer has any code, which may not expect None
        is_read_back = False
    return None if is_read_back else f"make its serializer {serializer.name!r} write None and read it back"


class CheckedSerializer(Serializer):
    """A serializer that writes only values of the declared type. It reads as the wrapped serializer."""

    def __init__(self, inner: Serializer, declared: ValueType, rule: Rule, checks: WriteChecks) -> None:
        self.name = inner.name  # type: ignore[misc]  # that of a class, elsewhere
        self.version = inner.version  # type: ignore[misc]
        self.loads = inner.loads  # type: ignore[method-assign]  # without a frame of their own: they are called per read
        self.load_all = inner.load_all  # type: ignore[method-assign]
        self._inner = inner
        self._declared = declared
        self._rule = rule
        self._checks = checks

    def dumps(self, value: Any) -> bytes:
        if type(value) not in self._rule.exact:
            try:
                self._rule.check(value)
            except Misfit as misfit:
                self._refuse(misfit)
        return self._inner.dumps(value)

    def loads(self, data: bytes) -> Any:
        return self._inner.loads(data)

    def loads_version(self, data: bytes, version: int) -> Any:
        return self._inner.loads_version(data, version)

    def dumper(self) -> Callable[[Any], bytes]:
        exact, check, dump, refuse = *self._rule, self._inner.dumper(), self._refuse

        def dump_checked(value: Any) -> bytes:
            if type(value) not in exact:
                try:
                    check(value)
                except Misfit as misfit:
                    refuse(misfit)
            return dump(value)

        return dump_checked

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        found: Sequence[Any] = values if isinstance(values, list) else list(values)
        exact, check = self._rule
        if not exact.issuperset(map(type, found)):
            try:
                for value in found:
                    if type(value) not in exact:
                        check(value)
            except Misfit as misfit:
                self._refuse(misfit)
        return self._inner.dump_all(found)

    def _refuse(self, misfit: Misfit) -> None:
        if self._checks.on:
            declared = "" if self._declared == OBJECT else f"it is declared as {self._declared}: "
            raise SerializationError(f"{declared}{misfit}") from None
