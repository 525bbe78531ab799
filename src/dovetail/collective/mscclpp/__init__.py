"""mscclpp: MSCCL++ JSON execution plans, read, proved and written."""

from dovetail.collective.mscclpp.certify import certify, launched
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.collective.mscclpp.read import read
from dovetail.collective.mscclpp.write import write

__all__ = ["MscclppPlan", "certify", "launched", "read", "write"]
