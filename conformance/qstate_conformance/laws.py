"""Laws: the tests of the suite, each of which says which MUSTs it checks.

Rules of this module: it knows what a law is and where laws are found (`qstate_conformance.<area>.laws_*`). It must
not know how laws are run, and does not import pytest: listing the laws runs nothing.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from qstate.backends.contract import Capability

__all__ = ["AREAS", "Area", "Law", "find_laws", "forget_laws", "is_laws_module", "law", "law_of", "laws_of"]

Area = Literal["backend", "server", "client"]
AREAS: tuple[Area, ...] = get_args(Area)

F = TypeVar("F", bound=Callable[..., None])

_PACKAGE = __package__ or "qstate_conformance"
_FILES = "laws_"
_FUNCTIONS = "test_"
#: Where `law` leaves its mark. `@given` keeps the attributes of what it wraps, so either order works.
_MARK = "__qstate_law__"


@dataclass(frozen=True, slots=True)
class _Mark:
    requirements: tuple[str, ...]
    needs: frozenset[Capability]
    proves: frozenset[Capability]
    soak: bool


@dataclass(frozen=True)
class Law:
    """One test of the suite.

    `id` is `area.module.name`, such as `backend.tables.get_gives_what_was_put`; `text` the law in one sentence. A
    `soak` law takes thousands of operations and runs only in the profiles that have the time.
    """

    id: str
    text: str
    requirements: tuple[str, ...]
    needs: frozenset[Capability]
    proves: frozenset[Capability]
    function: Callable[..., None]
    soak: bool = False

    @property
    def area(self) -> str:
        return self.id.split(".", 1)[0]

    @property
    def group(self) -> str:
        """What the law is about: the name of its module."""
        return self.id.split(".")[1]


def law(
    *requirements: str, needs: Iterable[Capability] = (), proves: Iterable[Capability] = (), soak: bool = False
) -> Callable[[F], F]:
    """Marks a module-level function `test_*` as a law: the MUSTs it checks (T1, R2, B3, P-GET-4 ...).

    The first line of its docstring is the law in one sentence. Without the capabilities that it `needs`, the law is
    skipped, and the report says so. Those that it `proves` (and so needs) are proved when it passes. A `soak` law is
    skipped in the quick profiles.
    """
    proved = frozenset(proves)
    mark = _Mark(requirements, frozenset(needs) | proved, proved, soak)

    def marked(function: F) -> F:
        setattr(function, _MARK, mark)
        return function

    return marked


def find_laws(area: Area) -> list[Law]:
    """Every law of an area, by module in alphabetical order and then as written. Imports the area's laws modules."""
    package = import_module(f"{_PACKAGE}.{area}")
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.name.startswith(_FILES))
    return [found for name in names for found in laws_of(import_module(f"{package.__name__}.{name}"))]


def laws_of(module: ModuleType) -> list[Law]:
    """The laws in one module. Raises `TypeError` for a test that is not a law, because it names no rule."""
    functions = [
        (name, function)
        for name, function in vars(module).items()
        if name.startswith(_FUNCTIONS) and callable(function) and function.__module__ == module.__name__
    ]
    return [law_of(function) for _, function in functions]


def law_of(function: Any) -> Law:
    """The law of a function. Raises `TypeError` when the function is not a law."""
    module, name = function.__module__, function.__name__
    mark, text = getattr(function, _MARK, None), inspect.getdoc(function)
    if not isinstance(mark, _Mark) or not mark.requirements or not text:
        raise TypeError(f"{module}.{name} is no law: it needs @law with the ids that it checks, and a docstring")
    area, group = module.split(".")[-2:]
    identifier = f"{area}.{group.removeprefix(_FILES)}.{name.removeprefix(_FUNCTIONS)}"
    sentence = text.splitlines()[0].strip()
    return Law(identifier, sentence, mark.requirements, mark.needs, mark.proves, function, mark.soak)


def is_laws_module(name: str) -> bool:
    """Whether a module of this full name holds laws."""
    package, _, last = name.rpartition(".")
    return last.startswith(_FILES) and package in {f"{_PACKAGE}.{area}" for area in AREAS}


def forget_laws() -> None:
    """Unload the laws, so that the next import applies new settings: hypothesis binds them at definition."""
    for name in [name for name in sys.modules if is_laws_module(name)]:
        del sys.modules[name]
