"""planner: choose the schedule with the shortest predicted time, prove it, and give the reasons."""

from dovetail.ir.registry import operator_class, operator_from
from dovetail.planner.plan import Plan
from dovetail.planner.rival import Rival
from dovetail.planner.search import plan

__all__ = ["Plan", "Rival", "operator_class", "operator_from", "plan"]
