"""The process between a task manager and the process that starts it: `daemonize.py MODULE`.

It starts MODULE with the argument FD and ends when that process has written a byte to the pipe FD (status 0), was
killed before (`KILLED_STATUS`) or has failed (1). So the starting process learns the outcome, has no child to reap
later, and is not the parent of the task manager.

Rules of this module: standard library only, and no import that starts a thread, because it forks. The task manager
cannot fork itself: its imports (Arrow, NumPy) start threads. Standard input and output are those of the task manager.
"""

import os
import sys

__all__ = ["KILLED_STATUS", "command_of", "main"]

#: The task manager was killed before it was up: a retry may help.
KILLED_STATUS = 2

#: Runs a module as `python -m` does, but imports nothing from the working directory: a driver may run in a directory
#: where every user can create files. (`python -P` does the same, from Python 3.11 on.)
_RUN = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of qstate in a process of its own."""
    return [sys.executable, "-c", _RUN, module, *arguments]


def main() -> None:
    """Start, wait, end."""
    is_up, tell = os.pipe()
    child = os.fork()
    if not child:
        os.set_inheritable(tell, True)
        os.execv(sys.executable, command_of(sys.argv[1], str(tell)))
    os.close(tell)
    if os.read(is_up, 1):
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os._exit(KILLED_STATUS if os.WIFSIGNALED(status) else 1)


if __name__ == "__main__":
    main()
