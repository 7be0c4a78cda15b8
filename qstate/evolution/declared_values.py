"""Values of a state, read as the type that a reader declares: a dataclass, a named tuple, an enum, `float | None`.

Rules of this module: stored values in, values of the declared type out, or `SerializationError`. It knows no bytes, and
no state but by its name in messages. What a declaration admits: `value_checks`.
"""

from __future__ import annotations

from typing import Any

from qstate.errors import SerializationError
from qstate.evolution.value_checks import Misfit, rule_of
from qstate.values.value_forms import form_of
from qstate.values.value_types import ClassType, value_type_of

__all__ = ["DeclaredValues"]


class DeclaredValues:
    """Reads stored values as values of `declared`. `where` is the text that begins its messages.

    Raises `ConfigError` for a type that cannot be made of stored values.
    """

    def __init__(self, declared: Any, where: str) -> None:
        self._arguments = declared, where
        self._where = where
        self._type = kind = value_type_of(declared)
        # Objects of any other class come ready from a serializer of the user's.
        self._form = None if isinstance(kind, ClassType) else form_of(kind)
        self._rule = rule_of(kind, None)

    def read(self, stored: Any) -> Any:
        """The value of a stored form, whose lists and dicts are plain ones. Raises `SerializationError`.

        Runs the code of the declared class, such as its `__post_init__`.
        """
        rule = self._rule
        try:
            value = stored if self._form is None else self._form.read(stored)
            if rule is not None and type(value) not in rule.exact:
                rule.check(value)
        except Misfit as misfit:
            misfit.advice = ""  # it is for the writer
            raise SerializationError(f"{self._where} has a value that is no {self._type}: {misfit}") from None
        except Exception as exc:
            raise SerializationError(f"{self._where} has a value that is no {self._type}: {exc}") from exc
        return value

    def __reduce__(self) -> tuple[type[DeclaredValues], tuple[Any, str]]:
        return type(self), self._arguments
