"""Functions that the job tests run in task managers: well behaved, and not."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qstate.descriptors import ReducingStateDescriptor
from qstate.operators.functions import KeyedProcessFunction
from tests.functions import add


class Totals(KeyedProcessFunction):
    """Adds amounts up per key, and does what `mischief` does at the rows with the key "mischief"."""

    def __init__(self, mischief: Callable[[], None] | None = None, fan_out: int = 1) -> None:
        self._mischief = mischief
        self._fan_out = fan_out

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.total.add(row.amount)
        if row.key == "mischief" and self._mischief is not None:
            self._mischief()
        for _ in range(self._fan_out):
            yield row.key, self.total.get()


class Open(Totals):
    """Does the mischief in open(), before it asks for its state."""

    def open(self, context: Any) -> None:
        if self._mischief is not None:
            self._mischief()
        super().open(context)


class Close(Totals):
    """Does the mischief in close()."""

    def close(self) -> None:
        if self._mischief is not None:
            self._mischief()


def fail() -> None:
    raise ValueError("as the test wants")


def exit_quietly() -> None:
    sys.exit(3)


def exit_at_once() -> None:
    os._exit(4)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_to_stdout() -> None:
    print("a line of the user's own")


def change_directory() -> None:
    os.chdir("/")


class Hold:
    """Blocks at a row until the test continues it; creates a file when it begins."""

    def __init__(self, directory: Path) -> None:
        self.reached = directory / "reached"
        self.go = directory / "go"

    def __call__(self) -> None:
        self.reached.touch()
        deadline = time.monotonic() + 60
        while not self.go.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the test never said go")
            threading.Event().wait(0.02)


class Once:
    """Does something only the first time, in any process."""

    def __init__(self, flag: Path, call: Callable[[], None]) -> None:
        self.flag = flag
        self._call = call

    def __call__(self) -> None:
        if not self.flag.exists():
            self.flag.touch()
            self._call()


class Importing(Totals):
    """Unpickling imports a module and gives its `function`, as for a class of that module."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return _imported_function, (self._module,)


def _imported_function(module: str) -> Any:
    return importlib.import_module(module).function
