"""tuner: probe, plan, prove, run interleaved with serial, and save the fastest schedule, in one function."""

from dovetail.tuner.result import TuneResult
from dovetail.tuner.tune import tune

__all__ = ["TuneResult", "tune"]
