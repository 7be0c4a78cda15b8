"""Queryable state for PySpark Structured Streaming: read a running job's keyed state live, by key.

Rules of this module: it holds the version and imports nothing, so that a client pays for nothing else.
"""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
