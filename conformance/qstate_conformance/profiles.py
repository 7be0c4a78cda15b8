"""How hard the suite tries: hypothesis profiles of its own, and the seed that makes a run repeatable.

Rules of this module: it is the only one that touches hypothesis' global settings, and it leaves them as they were.
Nothing is kept from run to run (no example database): the same seed gives the same examples everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, core, settings

__all__ = ["DEFAULT_PROFILE", "PROFILES", "SOAKING", "active", "examples"]

#: Examples per law. `nightly` is twenty times `ci`.
PROFILES = {"dev": 20, "ci": 100, "nightly": 2_000}
DEFAULT_PROFILE = "ci"
#: The profiles that have the time for soak laws.
SOAKING = frozenset({"nightly"})
_PREFIX = "qstate-conformance-"

for _name, _examples in PROFILES.items():
    settings.register_profile(
        _PREFIX + _name,
        max_examples=_examples,
        # A shared machine stalls now and then: time limits per example would test the machine.
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
        # The seed decides, not a digest of the test's source.
        derandomize=False,
        print_blob=True,
        # Of several defects the first is shown and shrunk: the others are found when it is mended.
        report_multiple_bugs=False,
        # Without `explain`: it runs failures under a tracer to say which parts do not matter; shrinking takes four
        # times as long then.
        phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
    )


@contextmanager
def active(profile: str, seed: int) -> Iterator[None]:
    """A context in which tests are defined with the profile's settings and run from the seed."""
    before, seed_before = settings.get_current_profile_name(), _force_seed(seed)
    settings.load_profile(_PREFIX + profile)
    try:
        yield
    finally:
        _force_seed(seed_before)
        settings.load_profile(before)


def _force_seed(seed: int | None) -> int | None:
    """Set what `--hypothesis-seed` sets, which state machines obey too; gives what it was."""
    # hypothesis.core declares the variable without its type.
    variables: dict[str, Any] = vars(core)
    before: int | None = variables["global_force_seed"]
    variables["global_force_seed"] = seed
    return before


def examples(fraction: float) -> settings:
    """Settings with this fraction of the profile's examples, at least one: `@examples(0.2)` over `@given`."""
    current = settings()
    return settings(current, max_examples=max(1, math.ceil(current.max_examples * fraction)))
