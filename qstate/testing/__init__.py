"""Test functions without Spark: `FunctionHarness`.

Rules of this package: it runs a function on the parts that task managers are made of, in the test's own process.
"""

from qstate.testing.harness import FunctionHarness

__all__ = ["FunctionHarness"]
