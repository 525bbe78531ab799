"""tensor_parallel: let a plan of `parallelize_module` run its linear layers by the operators of `dovetail.torch`."""

from __future__ import annotations

from typing import Any


def overlapped(plan: Any) -> Any:
    """Return a plan whose linear layers overlap their messages with their products.

        parallelize_module(model, mesh, dovetail.torch.overlapped(plan))

    Parameters
    ----------
    plan : ParallelStyle or dict
        What `torch.distributed.tensor.parallel.parallelize_module` takes: a style, or styles by module names.

    Returns
    -------
    ParallelStyle or dict
        Of the same form. Outputs, their layouts and gradients are those of `plan`, up to rounding:

        - `ColwiseParallel` of a Linear runs `all_gather_linear` if its input is cut along any axis but the last, else
          `linear_of_replicated`. Layers of one parent module that are given the same input share one gather.
        - `RowwiseParallel` of a Linear runs `linear_reduce_scatter` or `linear_all_reduce`, by its output's layout.
        - `PrepareModuleInput` from Shard to Replicate gathers when something else than such layers reads the input.
        - Every other style runs as it is. `explain` names the layers that were left to PyTorch, and why.

    Raises
    ------
    OperatorError
        If `plan` is no plan; from `parallelize_module`, if the mesh is no CPU mesh on a group of backend "dovetail".

    Notes
    -----
    While torch.compile traces, each layer gathers its own input.
    """
    from dovetail.torch.styles import wrapped

    return wrapped(plan)
