"""Core: errors that teach, units, the JSON codec. Imports nothing of ours."""

from dovetail.core.codec import check_schema, load_json, read_arrays, save_json, save_text
from dovetail.core.errors import (
    CostError,
    DovetailError,
    EnvironmentFault,
    MachineError,
    PlanError,
    ProgramError,
    RunError,
    WishError,
)
from dovetail.core.units import parse_bytes, parse_count, parse_seconds, seconds_text, share_text

__all__ = [
    "CostError",
    "DovetailError",
    "EnvironmentFault",
    "MachineError",
    "PlanError",
    "ProgramError",
    "RunError",
    "WishError",
    "check_schema",
    "load_json",
    "parse_bytes",
    "parse_count",
    "parse_seconds",
    "read_arrays",
    "save_json",
    "save_text",
    "seconds_text",
    "share_text",
]
