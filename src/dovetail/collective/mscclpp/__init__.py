"""mscclpp: read, prove and write MSCCL++ JSON execution plans."""

from dovetail.collective.mscclpp.certify import certify, launched
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.collective.mscclpp.read import read
from dovetail.collective.mscclpp.write import write

__all__ = ["MscclppPlan", "certify", "launched", "read", "write"]
