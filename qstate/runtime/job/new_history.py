"""Gives the checkpoint directory of a stopped job a new history, so that followers notice that the job goes back.

Rules of this module: it writes the manifest as the owner of the directory, and nothing else of it. It needs no job.
"""

from __future__ import annotations

from contextlib import closing

from qstate.checkpoint.manifest import MANIFEST_FILE, JobManifest
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import ConfigError
from qstate.runtime.job.directory_owner import check_closed, take_ownership

__all__ = ["begin_new_history"]


def begin_new_history(files: Directory) -> JobManifest:
    """Write a manifest with a new history, durably, and return it.

    Raises `ConfigError` when a job uses the directory, or there is none in it, and `CheckpointError` when the manifest
    cannot be read or written: it is then as before.
    """
    _manifest(files)  # nothing is made in a directory that is of no job
    check_closed(files)
    with closing(take_ownership(files)):
        manifest = _manifest(files).with_new_history()
        manifest.write(files)
    return manifest


def _manifest(files: Directory) -> JobManifest:
    found = JobManifest.read(files)
    if found is None:
        raise ConfigError(
            f"{files.path} has no {MANIFEST_FILE}: name the checkpoint_dir of a job. A job that starts from a "
            "savepoint has a new history by itself"
        )
    return found
