"""Finds and removes the directories of earlier layouts that no reader needs any more, and finds unused layouts.

Rules of this module: it decides from the files alone, one operator at a time, and changes nothing except by removing.

A reader reads a key group in the newest layout in which its subtask has a log. Such a log has all of its state from its
first file on, which is a snapshot of the state before. So once every subtask of a layout has a log, no reader uses the
earlier layouts. Once each of these subtasks has sealed a final epoch, no restart can need them. Their epochs may still
be wanted by readers that follow the changes, so the earlier layouts stay for some more epochs.

**What a crash leaves.** The oldest layout is removed first, and in a subtask the snapshots before the epochs, both
ascending. So the rest of a directory is the whole history or one that readers refuse, never an older history that looks
whole. In each case readers find the newer layout first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from qstate.checkpoint.log.chain import NO_EPOCH, Chain
from qstate.checkpoint.log.file_names import is_history_file, removal_order
from qstate.checkpoint.manifest import JobManifest, layout_directory, layout_places, operator_directory
from qstate.checkpoint.sources.history import existing_chain
from qstate.checkpoint.storage.directory import Directory, doing

__all__ = ["earlier_layouts", "remove_layout", "superseded_layouts", "without_unused_layouts"]

_LAYOUT = re.compile(r"\d{3,}")


def earlier_layouts(root: Directory, manifest: JobManifest, operator: str) -> dict[int, Directory]:
    """The directories of an operator's layouts before the one in use, the oldest first. Raises `OSError`."""
    directory = operator_directory(root, operator)
    found = {int(name): directory.joinpath(name) for name in directory.names() if _LAYOUT.fullmatch(name)}
    return {number: found[number] for number in sorted(found) if number < manifest.layout}


def without_unused_layouts(root: Directory, manifest: JobManifest) -> JobManifest:
    """The manifest without its last layouts, as far as no subtask of any operator has begun a log in them.

    All state is in the layouts before, so a job may continue in the last of those. A manifest whose layouts are all
    unused stays as it is. Raises `CheckpointError`.
    """
    with doing(f"read {root.path}", root):
        for layout in range(manifest.layout, -1, -1):
            if any(_is_used(operator_directory(root, uid), layout) for uid in manifest.operators):
                return replace(manifest, layouts=manifest.layouts[: layout + 1])
    return manifest


def _is_used(operator: Directory, layout: int) -> bool:
    directory = layout_directory(operator, layout)
    return any(any(map(is_history_file, directory.joinpath(subtask).names())) for subtask in directory.names())


def superseded_layouts(
    root: Directory, manifest: JobManifest, operator: str, final: int, epochs: int = 1
) -> list[Directory]:
    """The earlier layouts that no reader needs any more, when Spark has committed epoch `final`.

    `epochs`: how many final epochs each subtask of the later layout must have, at least 1.

    Raises `CheckpointError` and `OSError` when files cannot be read.
    """
    earlier = earlier_layouts(root, manifest, operator)
    if not earlier:
        return []
    for layout in range(manifest.layout, 0, -1):
        chains = map(existing_chain, layout_places(root, manifest, operator, layout))
        if all(chain is not None and _has_own_epochs(chain, final, epochs) for chain in chains):
            return [directory for number, directory in earlier.items() if number < layout]
    return []


def _has_own_epochs(chain: Chain, final: int, epochs: int) -> bool:
    """Whether a log has so many final epochs of its own after the state it began with."""
    oldest = chain.bases[-1]
    if oldest is not None and oldest.sequence > 0:  # its own snapshots have replaced its beginning
        return oldest.epoch <= final
    return sum(one.epoch != NO_EPOCH and one.epoch <= final for one in chain.segments) >= epochs


def remove_layout(layout: Directory, stopping: Callable[[], bool] = lambda: False) -> None:
    """Remove a layout's directory; stops early when `stopping` returns True. The next call removes the rest.

    Raises `OSError`, such as for a directory that another process still writes to.
    """
    for name in sorted(layout.names()):
        subtask = layout.joinpath(name)
        for file in removal_order(subtask.names()):
            if stopping():
                return
            subtask.remove(file)
        subtask.remove_itself()
    layout.remove_itself()
