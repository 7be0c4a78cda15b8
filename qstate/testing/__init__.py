"""Test functions without Spark: `FunctionHarness`, `Input` for a second stream, and `Broadcast` for broadcast rows.

Rules of this package: it runs a function on the parts that task managers are made of, in the test's own process.
"""

from qstate.testing.harness import FunctionHarness
from qstate.testing.inputs import Broadcast, Input

__all__ = ["Broadcast", "FunctionHarness", "Input"]
