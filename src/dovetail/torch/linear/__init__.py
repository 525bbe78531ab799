"""linear: linear layers whose collectives overlap with their products, as operators of torch."""

from dovetail.torch.linear import gradients, rules, schemas
from dovetail.torch.linear.explaining import explain
from dovetail.torch.linear.products import (
    all_gather_linear,
    linear_all_reduce,
    linear_of_replicated,
    linear_reduce_scatter,
)
from dovetail.torch.linear.warming import warm_up

__all__ = [
    "all_gather_linear",
    "explain",
    "linear_all_reduce",
    "linear_of_replicated",
    "linear_reduce_scatter",
    "warm_up",
]

schemas.register()
gradients.register()
rules.register()
