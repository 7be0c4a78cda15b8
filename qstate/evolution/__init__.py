"""Decides whether a program can restore state that another one stored, and how its values are converted."""

from qstate.evolution.plan import Converted, Evolution, Unchanged, plan_evolution
from qstate.evolution.schema import StateSchema

__all__ = ["Converted", "Evolution", "StateSchema", "Unchanged", "plan_evolution"]
