"""Short time slices: requested from the kernel, and read back from it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from qstate.runtime.tasks.time_slice import SLICE_NS

READ_BACK = """
import ctypes, os, platform, struct, threading
from qstate.runtime.tasks.time_slice import shorten_time_slice

def seen():
    attributes = ctypes.create_string_buffer(56)
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, 56, 0) == 0
    policy, nice, runtime = struct.unpack_from("=4xI8xi4xQ", attributes.raw)
    return policy, nice, runtime

os.nice(3)
print(shorten_time_slice())
print(*seen())
thread = threading.Thread(target=lambda: print(*seen()))
thread.start()
thread.join()
"""


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


@pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64") or _kernel() < (6, 12),
    reason="the kernel has no time slices of a thread's own",
)
def test_threads_get_the_shortest_slice_and_keep_their_niceness() -> None:
    done = subprocess.run([sys.executable, "-c", READ_BACK], capture_output=True, text=True, check=True)
    answer, *seen = done.stdout.splitlines()
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert answer == "True"
    assert seen == [f"{os.SCHED_OTHER} {nice} {SLICE_NS}"] * 2
