"""Registers the data source `qstate`: Spark looks for modules whose names begin with `pyspark_`.

Rules of this module: it names the class, and nothing else. An error here would keep all Python data sources of a
session from being found.
"""

from qstate.spark.data_source.source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
