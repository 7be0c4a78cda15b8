"""Ends a forked child that returns into qstate's code.

Rules of this module: standard library only.

A user's function may fork, as `multiprocessing` does; such children end by themselves. But a child that returns from
the function would continue with copies of its parent's objects: it would send the same results over the same
connection, seal the same epoch, and finally remove its parent's directories. So qstate ends it at its next call into
qstate's code, at once and without any clean-up.
"""

from __future__ import annotations

import os

__all__ = ["end_forked_child"]

_STATUS = 1


def end_forked_child(owner: int) -> None:
    """End this process unless its id is `owner`, the process that opened the resource about to be used."""
    if os.getpid() == owner:
        return
    said = (
        f"qstate: a forked child came back into the code of its parent, process {owner}: a function, a serializer or "
        f"the like called os.fork(). The child (process {os.getpid()}) ends here, and none of its work counts. "
        "End a child with os._exit(), or use multiprocessing or subprocess\n"
    )
    os.write(2, said.encode())
    os._exit(_STATUS)
