"""Injects storage faults into a job's processes: Python imports it from any directory on its path."""

import os
import sys
from pathlib import Path

STANDBY_MODULE = "qstate.runtime.standby.job_standby"
TASK_MANAGER_MODULE = "qstate.runtime.tasks.task_manager"
SNAPSHOT_MODULE = "qstate.checkpoint.log.snapshot_process"

# `sys.argv` is not there yet.
if "QSTATE_CHAOS_PLAN" in os.environ and {TASK_MANAGER_MODULE, SNAPSHOT_MODULE}.intersection(sys.orig_argv):
    from tests.chaos.storage_faults import install

    is_snapshot = SNAPSHOT_MODULE in sys.orig_argv
    install(sys.orig_argv[sys.orig_argv.index(SNAPSHOT_MODULE) + 1 :] if is_snapshot else [])
elif "QSTATE_CHAOS_PLAN" in os.environ and STANDBY_MODULE in sys.orig_argv:
    # It writes nothing, so its storage has no faults; it says that it is there.
    (Path(os.environ["QSTATE_CHAOS_PLAN"]) / f"{os.getpid()}.process").touch()
