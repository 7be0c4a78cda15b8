"""Removes the directories of earlier layouts while the job runs, on a thread of its own.

Rules of this module: it decides when; `qstate.checkpoint.sources.superseded_layouts` decides what is removed, and in
which order. It runs in the driver, which owns the directory and knows the final epochs. Nothing waits for it, and a
failure costs only disk space: the next run of the job tries again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable

from qstate.checkpoint.manifest import JobManifest
from qstate.checkpoint.sources.superseded_layouts import earlier_layouts, remove_layout, superseded_layouts
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import CheckpointError

__all__ = ["OldLayouts"]

log = logging.getLogger(__name__)


class OldLayouts:
    """Any thread may report a final epoch.

    An earlier layout stays until the later one has `epochs` final epochs: subscribers read its last ones. So it is
    enough to look once in so many epochs.
    """

    def __init__(self, root: Directory, epochs: int = 1) -> None:
        self._root = root
        self._epochs = epochs
        #: By operator, how many final epochs were reported.
        self._reports: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        #: Operators with nothing left to remove in this run.
        self._done: set[str] = set()

    def epoch_is_final(self, manifest: JobManifest, operators: Iterable[str], epoch: int) -> None:
        """Start to remove what these operators no longer need, unless a removal is running. Never raises."""
        if manifest.layout == 0:
            return
        waiting = [uid for uid in operators if uid not in self._done]
        due = [uid for uid in waiting if self._reports[uid] % self._epochs == 0]
        self._reports.update(waiting)
        if not due:
            return
        with self._lock:
            if self._closed.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(
                target=self._remove, args=(manifest, due, epoch), name="qstate-old-layouts", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop after the current file. Idempotent."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _remove(self, manifest: JobManifest, operators: Iterable[str], epoch: int) -> None:
        for uid in operators:
            try:
                for directory in superseded_layouts(self._root, manifest, uid, epoch, self._epochs):
                    remove_layout(directory, self._closed.is_set)
                    if self._closed.is_set():
                        return
                    log.info("%s is removed: no state is read from it any more", directory.path)
                if not earlier_layouts(self._root, manifest, uid):
                    self._done.add(uid)
            except (CheckpointError, OSError) as exc:
                log.warning("an earlier layout of operator %s stays until the job is started again: %s", uid, exc)
                self._done.add(uid)
