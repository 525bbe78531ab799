"""collective: the front door for collective algorithms; a user's program of chunks becomes a certified Program."""

from dovetail.collective.spec import KINDS, Sizes, Spec, custom, spec_of

__all__ = ["KINDS", "Sizes", "Spec", "custom", "spec_of"]
