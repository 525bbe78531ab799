"""cost: how many seconds ops take. Samples become curves, curves a model, a model the prices of a Program."""

from dovetail.cost.curve import Curve, Mode, Segment
from dovetail.cost.fit import as_measured, fit, fit_factor
from dovetail.cost.folded import price_folded
from dovetail.cost.model import Accuracy, CostModel, rate_key
from dovetail.cost.modes import EagerLimit, eager_limit, modes
from dovetail.cost.price import price
from dovetail.cost.prices import Prices
from dovetail.cost.protocol import Protocol, price_protocol, protocols
from dovetail.cost.samples import Samples

__all__ = [
    "Accuracy",
    "CostModel",
    "Curve",
    "EagerLimit",
    "Mode",
    "Prices",
    "Protocol",
    "Samples",
    "Segment",
    "as_measured",
    "eager_limit",
    "fit",
    "fit_factor",
    "modes",
    "price",
    "price_folded",
    "price_protocol",
    "protocols",
    "rate_key",
]
