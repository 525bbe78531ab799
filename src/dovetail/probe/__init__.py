"""probe: small Programs, run by the ordinary executor, whose spans become the costs of a Machine."""

from dovetail.probe.probe import Budget, probe_links, probe_matmul

__all__ = ["Budget", "probe_links", "probe_matmul"]
