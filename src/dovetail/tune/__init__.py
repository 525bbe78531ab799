"""tune: the river in one function: probe, plan, prove, run in turn with serial, and keep what is faster."""

import sys
from types import ModuleType

from dovetail.tune.tune import TuneResult, tune

__all__ = ["TuneResult", "tune"]


class _Room(ModuleType):
    """This room can be called, for `dovetail.tune` is the room as well as its verb."""

    __call__ = staticmethod(tune)


sys.modules[__name__].__class__ = _Room
