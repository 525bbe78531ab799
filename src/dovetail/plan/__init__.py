"""plan: choose among schedules by what they are predicted to cost, prove the choice, and say why."""

import sys
from types import ModuleType

from dovetail.plan.optimum import optimal
from dovetail.plan.plan import Choices, Plan, Rival
from dovetail.plan.search import plan
from dovetail.plan.tiles import Tiling, mc2, pipeline_s, serial, uniform

__all__ = ["Choices", "Plan", "Rival", "Tiling", "mc2", "optimal", "pipeline_s", "plan", "serial", "uniform"]


class _Room(ModuleType):
    """This room can be called, for `dovetail.plan` is the room as well as its verb."""

    __call__ = staticmethod(plan)


sys.modules[__name__].__class__ = _Room
