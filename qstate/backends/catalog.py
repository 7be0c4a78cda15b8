"""The backends by name, and the check of a job's choice.

Rules of this module: it finds and opens backends and knows nothing else of them. `heap` and `rocksdb` come with qstate;
other packages register theirs under the entry-point group `qstate.backends`, one entry per name, whose value is the
backend's class. It imports a backend only when its name is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from qstate.backends.contract import BackendContext, BackendOption, StateBackend
from qstate.errors import ConfigError, InstallationError
from qstate.keys import KeyGroupRange
from qstate.setting_values import setting_value

__all__ = ["ENTRY_POINT_GROUP", "backend_class", "backend_names", "check_backend", "open_backend"]

ENTRY_POINT_GROUP = "qstate.backends"

_BUILT_IN = {
    "heap": ("qstate.backends.heap.backend", "HeapBackend"),
    "rocksdb": ("qstate.backends.byte_stores.rocksdb", "RocksDBBackend"),
}


def backend_names() -> list[str]:
    """Every name that `open_backend` accepts."""
    return sorted({*_BUILT_IN, *_registered()})


def backend_class(name: str) -> type[StateBackend]:
    """The class of a backend.

    Raises `ConfigError` for an unknown name, with the valid ones, and `InstallationError` when a package that the
    backend needs is missing.
    """
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        found: Any = getattr(import_module(module), attribute)
    elif name in (registered := _registered()):
        try:
            found = registered[name].load()
        except (ImportError, AttributeError) as exc:
            raise InstallationError(f"the backend {name!r} ({registered[name].value}) cannot be loaded: {exc}") from exc
    else:
        raise ConfigError(_unknown("state backend", name, backend_names()))
    if not (isinstance(found, type) and issubclass(found, StateBackend)):
        raise ConfigError(f"the backend {name!r} is registered as {found!r}, which is not a StateBackend class")
    return found


def check_backend(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check the options of a backend and return all of them with their values. The driver calls it before it starts.

    A value has the option's type, or is text for such a value (from the Spark conf). Raises what `backend_class`
    raises, and `ConfigError` for an unknown option or an invalid value.
    """
    declared, given = backend_class(name).options, dict(options or {})
    for option in given:
        if option not in declared:
            raise ConfigError(_unknown(f"option of the backend {name!r}", option, declared))
    return {
        option: _checked(name, option, declaration, given[option]) if option in given else declaration.default
        for option, declaration in declared.items()
    }


def open_backend(
    name: str,
    *,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    directory: Path,
    options: Mapping[str, Any] | None = None,
) -> StateBackend:
    """Open an empty backend for a subtask. Raises what `check_backend` raises; the caller closes the backend."""
    checked = check_backend(name, options)
    return backend_class(name)(BackendContext(key_groups, max_parallelism, directory, checked))


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _unknown(what: str, name: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown {what}: {name!r}{hint} Valid are: {', '.join(names) or 'none'}"


def _checked(backend: str, name: str, option: BackendOption, value: Any) -> Any:
    expected = option.type.__name__
    if option.choices:
        expected = f"one of {', '.join(map(str, option.choices))}"
    elif option.minimum is not None:
        expected += f" of at least {option.minimum}"
    found = setting_value(option.type, value)
    is_choice = not option.choices or found in option.choices
    if found is None or not is_choice or (option.minimum is not None and not found >= option.minimum):
        raise ConfigError(f"option {name!r} of the backend {backend!r} must be {expected}, got {value!r}")
    return found
