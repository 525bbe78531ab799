"""probe: small Programs, run by the ordinary executor, whose spans become the costs of a Machine."""

from dovetail.probe.balance import Balanced, balanced
from dovetail.probe.links import find_ranks, probe_links, spot_check
from dovetail.probe.take import Budget
from dovetail.probe.wish import probe_wish

__all__ = ["Balanced", "Budget", "balanced", "find_ranks", "probe_links", "probe_wish", "spot_check"]
