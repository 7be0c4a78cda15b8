"""Committed state without the job, under a short name: `from qstate.standby import serve_checkpoint`.

Rules of this module: names only. It works where neither Spark nor PyArrow is installed.
"""

from qstate.runtime.standby.standby import Standby, StandbyStatus, serve_checkpoint

__all__ = ["Standby", "StandbyStatus", "serve_checkpoint"]
