"""The examples of the profile `ci` without shrinking: a law ends at its first failure.

A seeded defect shows whether a law catches it. Shrinking asks the same law many times more and finds nothing new; the
tests of the framework and a few of the defects' tests prove that it works.
"""

from __future__ import annotations

from hypothesis import Phase, settings

from qstate_conformance.profiles import DEFAULT_PROFILE

__all__ = ["UNSHRUNK"]

#: The name of the profile, for a `Plan` or `profiles.active`.
UNSHRUNK = "unshrunk"

_SHRINKING = settings.get_profile(f"qstate-conformance-{DEFAULT_PROFILE}")
settings.register_profile(
    f"qstate-conformance-{UNSHRUNK}",
    _SHRINKING,
    phases=[phase for phase in _SHRINKING.phases if phase is not Phase.shrink],
    report_multiple_bugs=False,
)
