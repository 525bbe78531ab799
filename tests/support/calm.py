"""Quick probes of a machine always found calm and unchanged; `python tests/support/calm.py …` is `dovetail …` there."""

import sys
from functools import partial

from dovetail.prober import links, take
from dovetail.prober import operator_costs as operator
from dovetail.tuner import machines, measure


def be_calm(patch=setattr) -> None:
    """Shorten the probes to the sizes of a test. Other load neither repeats them nor makes a cached cost doubtful."""
    patch(take, "AGAIN", 0)
    patch(measure, "LAUNCHES", 2)
    patch(measure, "WORTH_S", 0.0)  # so many rounds as are asked for
    patch(measure, "MOST_REPEATS", 20)  # more ranks than cores take a hundred times what is predicted
    for module in (links, operator):
        patch(module, "Budget", partial(take.Budget, each_s=0.02, most=12))
        patch(module, "should_probe_again", lambda *_: False)
    patch(machines, "is_doubted", lambda *_: False)
    for name in ("spot_check", "spot_check_operator"):
        patch(machines, name, partial(getattr(machines, name), tolerance=9.0))


if __name__ == "__main__":
    from dovetail.cli import main

    be_calm()
    sys.exit(main())
