"""Ends a forked child that comes back into qstate's code.

Rules of this module: standard library only.

A user's function may fork, as `multiprocessing` does; its children end by themselves. But a child that comes back from
the function would go on with copies of all that its parent has: it would send the same results over the same
connection, seal the same epoch, and in the end remove its parent's directories. So it ends where it reaches qstate's
code again: at once, without any clean-up.
"""

from __future__ import annotations

import os

__all__ = ["end_forked_child"]

_STATUS = 1


def end_forked_child(owner: int) -> None:
    """End this process unless it is the one of this number, which has opened what is about to be used."""
    if os.getpid() == owner:
        return
    said = (
        f"qstate: a forked child came back into the code of its parent, process {owner}: a function, a serializer or "
        f"the like called os.fork(). The child (process {os.getpid()}) ends here, and nothing of what it did counts. "
        "End a child with os._exit(), or use multiprocessing or subprocess\n"
    )
    os.write(2, said.encode())
    os._exit(_STATUS)
