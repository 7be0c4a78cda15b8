"""The register of the seeded defects: each breaks qstate's own client in one place, and names the law that catches it.

A defect is a function that patches, in a process of its own, what it is about: `program.py` calls it and then runs the
driver of the synchronous or the asyncio client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qstate.protocol import codec, messages
from qstate_conformance.client.python_async_driver import PythonAsyncDriver
from qstate_conformance.client.python_driver import PythonDriver

__all__ = ["SEEDS", "Seed", "defect", "ignore_rules_of"]

Driver = type[PythonDriver] | type[PythonAsyncDriver]


@dataclass(frozen=True)
class Seed:
    """A defect: what breaks, the law that must catch it, and the driver that shows it."""

    sow: Callable[[], None]
    caught_by: str
    driver: Driver


SEEDS: dict[str, Seed] = {}


def defect(caught_by: str, driver: Driver = PythonDriver) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a defect under its function's name. `caught_by` is the id of a law without `client.`."""

    def register(sow: Callable[[], None]) -> Callable[[], None]:
        SEEDS[sow.__name__] = Seed(sow, f"client.{caught_by}", driver)
        return sow

    return register


def ignore_rules_of(message: type) -> None:
    """Have the codec read a message by the present types of its fields, without the rule that concerns several."""
    form = next(form for form in messages.FORMS if form.message is message)._replace(check=lambda message, limits: None)
    codec.PLANS[message] = codec.plan_of(form)
    codec.decoder_of.cache_clear()
