# What `import dovetail` offers, for type checkers; __init__.py loads each name when it is first used.
from dovetail.collective import AllGather, AllReduce, AllToAll, AllToNext, Broadcast, ReduceScatter
from dovetail.core import DovetailError as DovetailError
from dovetail.ir import Program as Program
from dovetail.ir import verify as verify
from dovetail.loops.pipelines import (
    GaussSeidel2d,
    Lcs,
    Seidel1d,
    Seidel2d,
    SmithWaterman,
    Sor2d,
    Ssor2d,
    SyncP2p,
    TripleNest,
)
from dovetail.loops.stencils import (
    Acoustic3d,
    Acoustic3d4,
    Acoustic3d6,
    Acoustic3d8,
    Fdtd2d,
    Heat3d,
    Jacobi1d,
    Jacobi2d,
    Jacobi3d,
    Laplace2d,
    RedBlack2d,
)
from dovetail.machine import Machine as Machine
from dovetail.machine import load as load_machine
from dovetail.matmul import (
    AllGatherColumnsMatmul,
    AllGatherMatmul,
    AllToAllMatmul,
    MatmulAllReduce,
    MatmulAllToAll,
    MatmulReduceScatter,
)
from dovetail.plan import Plan as Plan
from dovetail.plan.search import plan as plan
from dovetail.report.explain import explain as explain
from dovetail.timeline import Timeline as Timeline
from dovetail.tune import TuneResult as TuneResult
from dovetail.tune.tune import tune as tune

__version__: str
__all__ = [
    "DovetailError",
    "Machine",
    "Plan",
    "Program",
    "Timeline",
    "TuneResult",
    "explain",
    "load_machine",
    "plan",
    "tune",
    "verify",
]

# Wishes, by the names of plan/wishes.py.
all_gather_matmul = AllGatherMatmul
all_gather_columns_matmul = AllGatherColumnsMatmul
all_to_all_matmul = AllToAllMatmul
matmul_all_reduce = MatmulAllReduce
matmul_all_to_all = MatmulAllToAll
matmul_reduce_scatter = MatmulReduceScatter
all_reduce = AllReduce
all_gather = AllGather
reduce_scatter = ReduceScatter
all_to_all = AllToAll
all_to_next = AllToNext
broadcast = Broadcast
jacobi1d = Jacobi1d
jacobi2d = Jacobi2d
jacobi3d = Jacobi3d
heat3d = Heat3d
acoustic3d = Acoustic3d
acoustic3d_4 = Acoustic3d4
acoustic3d_6 = Acoustic3d6
acoustic3d_8 = Acoustic3d8
fdtd2d = Fdtd2d
laplace2d = Laplace2d
red_black2d = RedBlack2d
sync_p2p = SyncP2p
gauss_seidel2d = GaussSeidel2d
sor2d = Sor2d
ssor2d = Ssor2d
seidel1d = Seidel1d
seidel2d = Seidel2d
lcs = Lcs
smith_waterman = SmithWaterman
triple_nest = TripleNest
