"""mscclpp: MSCCL++ JSON execution plans, read and proved."""

from dovetail.collective.mscclpp.certify import certify
from dovetail.collective.mscclpp.parts import MscclppPlan
from dovetail.collective.mscclpp.read import read

__all__ = ["MscclppPlan", "certify", "read"]
