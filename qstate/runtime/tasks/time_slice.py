"""Sets how long a thread of this process may keep a processor while others wait for it.

Rules of this module: it wraps one system call of Linux and decides nothing. Without that call (another system, a kernel
before 6.12), nothing changes: it affects latency, not correctness.

A query wakes a thread of the task manager. When all processors are busy, Linux lets that thread wait for the end of a
slice, 3 to 4 ms, and again until the operator, which holds the interpreter's lock, gets its processor back. A thread
with a shorter slice than the running one preempts it at once. Shares of processor time stay the same, slices are
shorter. Measured on two saturated processors: p99 of a live get is about 5 ms instead of 7.4, with no measurable loss
of rows per second.
"""

from __future__ import annotations

import ctypes
import os
import platform
from struct import Struct

__all__ = ["shorten_time_slice"]

#: The shortest slice that the kernel grants: `sched_attr.sched_runtime` of an ordinary thread, in nanoseconds.
SLICE_NS = 100_000
#: The number of `sched_setattr` by architecture (`asm/unistd.h`), because the C library has no function for it.
_SYSTEM_CALLS = {"x86_64": 314, "aarch64": 274}
#: `struct sched_attr`: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = Struct("=IIQiIQQQ")


def shorten_time_slice() -> bool:
    """Ask for the shortest time slice for the calling thread and the threads that it starts from now on.

    Its niceness stays. Returns False, and changes nothing, when the kernel does not support it or the thread does not
    have the ordinary scheduling policy.
    """
    number = _SYSTEM_CALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    refused: int = ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    return not refused
