"""Refuses in a task manager what only the driver may do: start Spark, and create a job.

Rules of this module: it knows where PySpark's SparkContext is, and imports nothing from PySpark. A task manager imports
the modules of the user's functions. A module that starts Spark when it is imported would start a Spark application and
a job manager in every task manager. PySpark's own workers refuse that by their task context, which a task manager does
not have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, NoReturn

from qstate.errors import JobError

__all__ = ["check_driver", "refuse_driver"]

#: Every start of Spark creates one of these; so do a session and a local server of Spark Connect.
CONTEXT_MODULE, CONTEXT_CLASS = "pyspark.core.context", "SparkContext"
_LIBRARIES = ("pyspark", "py4j", "importlib", "_frozen_importlib")

_refused = False


def refuse_driver() -> None:
    """Mark this process as a task manager: from now on, `SparkContext` and `check_driver` raise `JobError`."""
    global _refused
    _refused = True
    loaded = sys.modules.get(CONTEXT_MODULE)
    if loaded is not None:
        _close(loaded)
    else:
        sys.meta_path.insert(0, _ContextFinder())


def check_driver(what: str) -> None:
    """Raise `JobError` in a task manager. It names the module that asked for `what`."""
    if _refused:
        raise JobError(f"{_culprit(sys._getframe(1))} {what} in a task manager. {_REMEDY}")


_REMEDY = (
    "Task managers import the modules that functions come from, and only the driver has a SparkSession: put the code "
    'of the driver under `if __name__ == "__main__":`, or into a function that the driver calls'
)


class _ContextFinder(MetaPathFinder):
    """Lets the standard finder find PySpark's module, and disables it when it has been loaded."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != CONTEXT_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ContextLoader(spec.loader)
        return spec


class _ContextLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _close(module)


def _close(module: ModuleType) -> None:
    getattr(module, CONTEXT_CLASS).__init__ = _refuse


def _refuse(context: Any, *args: Any, **settings: Any) -> NoReturn:
    check_driver("starts Spark")
    raise AssertionError("only a task manager is closed")


def _culprit(frame: FrameType | None) -> str:
    """The user's code that has to change: the line of a module that is being imported, else the calling function."""
    nearest = ""
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        package = module.partition(".")[0]
        if package == "qstate" and nearest:
            break
        if package not in (*_LIBRARIES, "qstate"):
            where = f"({frame.f_code.co_filename}, line {frame.f_lineno})"
            if function == "<module>":
                return f"as it is imported, module {module!r} {where}"
            nearest = nearest or f"{function}() of module {module!r} {where}"
        frame = frame.f_back
    return nearest or "the function"
