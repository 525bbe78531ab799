"""What `make thorough` does in full, `make test` in part."""

import os

THOROUGH = "DOVETAIL_THOROUGH" in os.environ


def some(most: int) -> int:
    """How many of at most so many examples: all of them, or a quarter, but ten at least."""
    return most if THOROUGH else min(most, max(most // 4, 10))
