"""What may change between the program that stored a state and the one that takes it up, and how it is converted."""

from qstate.evolution.plan import Converted, Evolution, Unchanged, plan_evolution
from qstate.evolution.schema import StateSchema

__all__ = ["Converted", "Evolution", "StateSchema", "Unchanged", "plan_evolution"]
