"""`python -m qstate` is the command `qstate`.

Rules of this module: it starts the command line, and does nothing when it is imported.
"""

from __future__ import annotations

from qstate.cli.main import program

__all__: list[str] = []

if __name__ == "__main__":
    program()
