"""core: errors with hints, units, the JSON codec, the cache folder, C builds. Imports no other package of Dovetail."""

from dovetail.core.cache import cache_dir, is_cached, warn_once
from dovetail.core.codec import (
    CACHED,
    check_schema,
    json_text,
    load_document,
    load_json,
    read_arrays,
    reading,
    replacing,
    save_json,
    save_text,
)
from dovetail.core.compiler import LIBRARIES, compile_c, compile_for_here, find_tool, native_folder
from dovetail.core.errors import (
    CostError,
    DovetailError,
    EnvironmentFault,
    FileError,
    MachineError,
    OperatorError,
    PlanError,
    ProgramError,
    RunError,
    did_you_mean,
)
from dovetail.core.progress import Say
from dovetail.core.registry import Registry
from dovetail.core.trust import file_danger, read_own
from dovetail.core.units import parse_bytes, parse_count, parse_seconds, seconds_text, share_text

__all__ = [
    "CACHED",
    "LIBRARIES",
    "CostError",
    "DovetailError",
    "EnvironmentFault",
    "FileError",
    "MachineError",
    "OperatorError",
    "PlanError",
    "ProgramError",
    "Registry",
    "RunError",
    "Say",
    "cache_dir",
    "check_schema",
    "compile_c",
    "compile_for_here",
    "did_you_mean",
    "file_danger",
    "find_tool",
    "is_cached",
    "json_text",
    "load_document",
    "load_json",
    "native_folder",
    "parse_bytes",
    "parse_count",
    "parse_seconds",
    "read_arrays",
    "read_own",
    "reading",
    "replacing",
    "save_json",
    "save_text",
    "seconds_text",
    "share_text",
    "warn_once",
]
