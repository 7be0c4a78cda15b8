"""`python -m qstate_conformance`."""

from __future__ import annotations

import sys

from qstate_conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
