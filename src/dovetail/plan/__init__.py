"""plan: choose among schedules by what they are predicted to cost, prove the choice, and say why."""

from dovetail.plan.optimum import optimal
from dovetail.plan.plan import Choices, Plan, Rival
from dovetail.plan.search import plan
from dovetail.plan.tiles import Tiling, mc2, pipeline_s, serial, uniform

__all__ = ["Choices", "Plan", "Rival", "Tiling", "mc2", "optimal", "pipeline_s", "plan", "serial", "uniform"]
