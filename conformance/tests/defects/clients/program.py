"""A driver of a client with one defect, as a program: `python -m tests.defects.clients.program NAME`."""

from __future__ import annotations

import asyncio
import inspect
import sys

from tests.defects.clients import (
    answering,
    asking,
    connecting,
    demanding,
    following,
    partial,
    retrying,
    routing,
    scanning,
    securing,
    viewing,
)
from tests.defects.clients.seeds import SEEDS

#: Importing them fills the register.
MODULES = (answering, asking, connecting, demanding, following, partial, retrying, routing, scanning, securing, viewing)


def main(name: str) -> None:
    """Run the driver of the defective client."""
    seed = SEEDS[name]
    seed.sow()
    running = seed.driver().run()
    if inspect.iscoroutine(running):
        asyncio.run(running)


if __name__ == "__main__":
    main(sys.argv[1])
