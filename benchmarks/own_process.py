"""Runs a measurement in a process of its own, so that only its own work is in the memory of the process.

Rules of this module: it starts the process as a task manager is started, and passes arguments and the result. The
function is found by its module, which should import little.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_own_process"]

Result = TypeVar("Result")

#: What task managers are started with.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def in_own_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of a module in a new process. Its progress goes to standard error. Raises when it fails."""
    command = [sys.executable, "-m", __name__]
    work = pickle.dumps((function, arguments))
    done = subprocess.run(command, input=work, stdout=subprocess.PIPE, env={**_MALLOC, **os.environ}, check=True)
    result: Result = pickle.loads(done.stdout)
    return result


def _main() -> None:
    function, arguments = pickle.load(sys.stdin.buffer)
    result = pickle.dumps(function(*arguments))
    sys.stdout.buffer.write(result)


if __name__ == "__main__":
    _main()
