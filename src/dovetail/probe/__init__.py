"""probe: small Programs, run by the ordinary executor, whose spans become the costs of a Machine."""

from dovetail.probe.balance import Balanced, balanced
from dovetail.probe.calls import probe_calls
from dovetail.probe.characterise import characterise
from dovetail.probe.characteristics import Beside, Characteristic, Characteristics, Cut, Ratio
from dovetail.probe.links import find_ranks, probe_links, spot_check
from dovetail.probe.take import Budget
from dovetail.probe.wish import probe_wish, spot_check_wish

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
    "probe_wish",
    "spot_check",
    "spot_check_wish",
]
