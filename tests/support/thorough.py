"""What `make thorough` does in full, `make test` in part."""

import os

THOROUGH = "DOVETAIL_THOROUGH" in os.environ


def some(most: int) -> int:
    """All examples in `make thorough`; else a quarter of them, but at least ten."""
    return most if THOROUGH else min(most, max(most // 4, 10))
