"""Problems: nests and stencils that come with Dovetail, a file each, written like users'; `ir.registry` lists them."""

from dovetail.core.registry import at
from dovetail.ir.registry import BUILT_IN
from dovetail.loops.problems.acoustic3d import acoustic3d_of

_FILES = [name for name, place in BUILT_IN.items() if place == f"{__name__}.{name}:{name}"]
globals().update({name: at(BUILT_IN[name]) for name in _FILES})

__all__ = ["acoustic3d_of", *_FILES]
