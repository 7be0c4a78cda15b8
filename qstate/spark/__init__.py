"""The PySpark edge: the only package of qstate that imports pyspark."""

from qstate.operators.functions import KeyedProcessFunction
from qstate.spark.job import Job
from qstate.spark.keyed_stream import KeyedStream
from qstate.spark.sink import QueryableStateStream

__all__ = ["Job", "KeyedProcessFunction", "KeyedStream", "QueryableStateStream"]
