"""The cache folder: where what was built or measured once is kept."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.core.errors import EnvironmentFault


def cache_dir() -> Path:
    """Where built libraries and measurements are kept: $DOVETAIL_CACHE, else the user's cache folder."""
    root = os.environ.get("DOVETAIL_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(root).expanduser() / ("" if "DOVETAIL_CACHE" in os.environ else "dovetail")
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe = place / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink(missing_ok=True)  # threads of one process may ask at once
    except OSError as error:
        hint = "set DOVETAIL_CACHE to a folder that you may write"
        raise EnvironmentFault(f"cannot write to the cache {place}", found=error.strerror, hint=hint) from error
    return place
