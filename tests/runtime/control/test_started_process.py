"""The end of a process: a signal that comes at any moment is heard."""

from __future__ import annotations

import subprocess
import sys

from qstate.runtime.control.started_process import End

#: The main thread is nearly always within `wait` when the signal comes. With an event, it waits for itself soon.
SIGNALLED = """
import signal
from qstate.runtime.control.started_process import End

end = End()
signal.signal(signal.SIGALRM, lambda *_: end.request("a signal"))
for _ in range(2000):
    end = End()
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    while not end.wait(0.0):
        pass
print(end.reason)
"""


def test_a_signal_at_any_moment_of_the_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "a signal\n"


def test_the_first_reason_counts() -> None:
    end = End()
    assert not end.wait(0.0)
    end.request("one")
    end.request("another")
    assert end.wait(0.0) and end.wait(0.0)
    assert end.reason == "one"
