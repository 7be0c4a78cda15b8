"""Injects storage faults into a job's processes: Python imports it from any directory on its path."""

import os
import sys

TASK_MANAGER_MODULE = "qstate.runtime.tasks.task_manager"
SNAPSHOT_MODULE = "qstate.checkpoint.log.snapshot_process"

# `sys.argv` is not there yet.
if "QSTATE_CHAOS_PLAN" in os.environ and {TASK_MANAGER_MODULE, SNAPSHOT_MODULE}.intersection(sys.orig_argv):
    from tests.chaos.storage_faults import install

    is_snapshot = SNAPSHOT_MODULE in sys.orig_argv
    install(sys.orig_argv[sys.orig_argv.index(SNAPSHOT_MODULE) + 1 :] if is_snapshot else [])
