"""tuner: probe, plan, prove, run interleaved with serial, and save the fastest schedule, in one function."""

from dovetail.tuner.tune import TuneResult, tune

__all__ = ["TuneResult", "tune"]
