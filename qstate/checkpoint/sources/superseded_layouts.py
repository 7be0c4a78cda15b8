"""Directories of earlier layouts: which of them nobody reads any more, and how they go.

Rules of this module: it decides by what is on disk alone, one operator at a time, and changes nothing but what it
removes.

A key group is read in the newest layout in which its subtask has a log. Such a log has had all of its state since its
first file, which is a snapshot of what the subtask had before. So once every subtask of a layout has a log, what is
below that layout is not read, and once each of them has sealed an epoch that is final, nothing leads back behind it.

**What a crash leaves.** The oldest layout goes first, of a subtask the snapshots before the epochs, both ascending. So
what is left of a directory is the history that it was or one that is refused, never an older one that looks whole; and
with all of it, some of it or none of it, readers find the newer layout first.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from qstate.checkpoint.log.chain import NO_EPOCH, Chain, LogIdentity
from qstate.checkpoint.log.file_names import removal_order
from qstate.checkpoint.manifest import JobManifest, operator_directory, subtask_directory
from qstate.checkpoint.sources.history import existing_chain
from qstate.checkpoint.storage.directory import Directory

__all__ = ["earlier_layouts", "remove_layout", "superseded_layouts"]

_LAYOUT = re.compile(r"\d{3,}")


def earlier_layouts(root: Directory, manifest: JobManifest, operator: str) -> dict[int, Directory]:
    """The directories of an operator's layouts before the one in use, the oldest first. Raises `OSError`."""
    directory = operator_directory(root, operator)
    found = {int(name): directory.joinpath(name) for name in directory.names() if _LAYOUT.fullmatch(name)}
    return {number: found[number] for number in sorted(found) if number < manifest.layout}


def superseded_layouts(root: Directory, manifest: JobManifest, operator: str, final: int) -> list[Directory]:
    """Those of them that nothing is read from any more, when Spark has committed epoch `final`.

    Raises `CheckpointError` and `OSError` when that cannot be found out.
    """
    earlier = earlier_layouts(root, manifest, operator)
    if not earlier:
        return []
    for layout in range(manifest.layout, 0, -1):
        if _stands_for_itself(root, manifest, operator, layout, final):
            return [directory for number, directory in earlier.items() if number < layout]
    return []


def _stands_for_itself(root: Directory, manifest: JobManifest, operator: str, layout: int, final: int) -> bool:
    """Whether every subtask of a layout has a log that has gone on, by a final epoch, from what it began with."""
    parallelism = manifest.layouts[layout]
    for subtask in range(parallelism):
        identity = LogIdentity(manifest.job, operator, subtask, parallelism, manifest.max_parallelism)
        chain = existing_chain(subtask_directory(root, operator, layout, subtask), identity)
        if chain is None or not _has_gone_on(chain, final):
            return False
    return True


def _has_gone_on(chain: Chain, final: int) -> bool:
    epochs = [one.epoch for one in chain.segments if one.epoch != NO_EPOCH]
    epochs += [base.epoch for base in chain.bases if base is not None and base.sequence > 0]
    return any(epoch <= final for epoch in epochs)


def remove_layout(layout: Directory, stopping: Callable[[], bool] = lambda: False) -> None:
    """Remove a layout's directory; once `stopping` says so, no further. Removing again goes on where it stopped.

    Raises `OSError`, such as for a directory that somebody still writes to.
    """
    for name in sorted(layout.names()):
        subtask = layout.joinpath(name)
        for file in removal_order(subtask.names()):
            if stopping():
                return
            subtask.remove(file)
        subtask.remove_itself()
    layout.remove_itself()
