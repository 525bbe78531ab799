"""plan: choose among schedules by what they are predicted to cost, and say why."""

from dovetail.plan.optimum import optimal
from dovetail.plan.tiles import Tiling, mc2, pipeline_s, serial, uniform

__all__ = ["Tiling", "mc2", "optimal", "pipeline_s", "serial", "uniform"]
