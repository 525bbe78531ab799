"""probe: small Programs, run by the ordinary executor, whose spans become the costs of a Machine."""

from dovetail.probe.links import find_ranks, probe_links, spot_check
from dovetail.probe.product import probe_matmul
from dovetail.probe.take import Budget

__all__ = ["Budget", "find_ranks", "probe_links", "probe_matmul", "spot_check"]
