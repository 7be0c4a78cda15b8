"""Test functions without Spark: `FunctionHarness`, and `Input` for a second stream.

Rules of this package: it runs a function on the parts that task managers are made of, in the test's own process.
"""

from qstate.testing.harness import FunctionHarness
from qstate.testing.inputs import Input

__all__ = ["FunctionHarness", "Input"]
