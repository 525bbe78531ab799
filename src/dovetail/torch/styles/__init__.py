"""styles: styles of `parallelize_module` whose layers run by the operators of `dovetail.torch`."""

from dovetail.torch.styles.plan import wrapped

__all__ = ["wrapped"]
