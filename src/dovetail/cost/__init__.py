"""cost: how many seconds. Samples become curves, curves a model, a model the prices of a Program."""

from dovetail.cost.curve import Curve, Mode, Segment
from dovetail.cost.model import Accuracy, CostModel
from dovetail.cost.price import price
from dovetail.cost.prices import Prices

__all__ = ["Accuracy", "CostModel", "Curve", "Mode", "Prices", "Segment", "price"]
