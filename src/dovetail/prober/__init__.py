"""prober: measure the costs of a Machine by running small Programs on the same executor as real schedules."""

from dovetail.prober.balance import Balanced, balanced
from dovetail.prober.calls import probe_calls
from dovetail.prober.characterise import characterise
from dovetail.prober.characteristics import Beside, Characteristic, Characteristics, Cut, Ratio
from dovetail.prober.links import find_ranks, probe_links, spot_check
from dovetail.prober.operator_costs import probe_operator, spot_check_operator
from dovetail.prober.shared import probe_shared
from dovetail.prober.take import Budget

__all__ = [
    "Balanced",
    "Beside",
    "Budget",
    "Characteristic",
    "Characteristics",
    "Cut",
    "Ratio",
    "balanced",
    "characterise",
    "find_ranks",
    "probe_calls",
    "probe_links",
    "probe_operator",
    "probe_shared",
    "spot_check",
    "spot_check_operator",
]
