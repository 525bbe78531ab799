"""torch: Dovetail as a backend of `torch.distributed`, and linear layers that overlap their collectives.

Importing this module registers the backend "dovetail" for CPU tensors: `init_process_group("dovetail")` then starts a
process group. Ranks of one host exchange messages through shared memory, without MPI; ranks of several by MPI. Under
mpiexec or srun the import sets RANK and WORLD_SIZE from the launcher's variables, unless they are set.
It also registers the operators `torch.ops.dovetail`, which `all_gather_linear` and its like call.
"""

from dovetail.torch import needed as needed
from dovetail.torch import symm
from dovetail.torch.backend import register
from dovetail.torch.group import DovetailGroup
from dovetail.torch.linear import (
    all_gather_linear,
    explain,
    linear_all_reduce,
    linear_of_replicated,
    linear_reduce_scatter,
    warm_up,
)
from dovetail.torch.tensor_parallel import overlapped
from dovetail.torch.work import GroupError

__all__ = [
    "DovetailGroup",
    "GroupError",
    "all_gather_linear",
    "explain",
    "linear_all_reduce",
    "linear_of_replicated",
    "linear_reduce_scatter",
    "overlapped",
    "warm_up",
]

register()
symm.register()
