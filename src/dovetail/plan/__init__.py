"""plan: choose among schedules by what they are predicted to cost, prove the choice, and say why."""

import sys
from types import ModuleType

from dovetail.plan.plan import Plan, Rival
from dovetail.plan.search import plan
from dovetail.plan.wishes import wish_class, wish_from, wishes

__all__ = ["Plan", "Rival", "plan", "wish_class", "wish_from", "wishes"]


class _Room(ModuleType):
    """This room can be called, for `dovetail.plan` is the room as well as its verb."""

    __call__ = staticmethod(plan)


sys.modules[__name__].__class__ = _Room
