"""tune: the river in one function: probe, plan, prove, run in turn with serial, and keep what is faster."""

from dovetail.tuner.tune import TuneResult, tune

__all__ = ["TuneResult", "tune"]
