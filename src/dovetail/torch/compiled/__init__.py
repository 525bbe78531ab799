"""compiled: what torch.compile makes of a program's collectives and products: operators that overlap them."""

from dovetail.torch.compiled.overlap_pass import Compiled, OverlapPass

__all__ = ["Compiled", "OverlapPass"]
