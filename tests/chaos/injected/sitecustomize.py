"""Found by every interpreter that has this directory on its path: brings faults of storage into a job's processes."""

import os
import sys

if "QSTATE_CHAOS_PLAN" in os.environ:
    from_module = {"qstate.runtime.task_manager", "qstate.checkpoint.snapshots"}.intersection(sys.orig_argv)
    if from_module:
        from tests.chaos.storage_faults import install

        install(sys.orig_argv)
