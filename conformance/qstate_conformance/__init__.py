"""The conformance suite of qstate: it proves a backend, a server or a client against what is promised of them."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
