"""The one Python door to the compiled module `_core`."""

from dovetail._native._core import *  # noqa: F403
