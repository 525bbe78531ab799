# What `dovetail` offers, for type checkers; made by tools/face_stub.py.
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.call.bind import bind as bind
from dovetail.call.bound import Bound as Bound
from dovetail.call.collectives import all_gather as all_gather
from dovetail.call.collectives import all_gather_v as all_gather_v
from dovetail.call.collectives import all_reduce as all_reduce
from dovetail.call.collectives import all_to_all as all_to_all
from dovetail.call.collectives import all_to_all_v as all_to_all_v
from dovetail.call.collectives import all_to_next as all_to_next
from dovetail.call.collectives import broadcast as broadcast
from dovetail.call.collectives import gather as gather
from dovetail.call.collectives import reduce as reduce
from dovetail.call.collectives import reduce_scatter as reduce_scatter
from dovetail.call.collectives import reduce_scatter_v as reduce_scatter_v
from dovetail.call.collectives import scatter as scatter
from dovetail.call.nest_operators import operator_of as operator_of
from dovetail.call.products import schedule_for as schedule_for
from dovetail.call.selection_rules import choice_for as choice_for
from dovetail.call.selection_rules import use as use
from dovetail.collective import AllGather as AllGather
from dovetail.collective import AllReduce as AllReduce
from dovetail.collective import AllToAll as AllToAll
from dovetail.collective import AllToNext as AllToNext
from dovetail.collective import Broadcast as Broadcast
from dovetail.collective import ReduceScatter as ReduceScatter
from dovetail.core import Say
from dovetail.core.errors import DovetailError as DovetailError
from dovetail.ir import Operator
from dovetail.ir.program import Program as Program
from dovetail.ir.proof.verify import verify as verify
from dovetail.ir.schedule import Schedule as Schedule
from dovetail.loops.expressions import cos as cos
from dovetail.loops.expressions import exp as exp
from dovetail.loops.expressions import maximum as maximum
from dovetail.loops.expressions import minimum as minimum
from dovetail.loops.expressions import sin as sin
from dovetail.loops.expressions import sqrt as sqrt
from dovetail.loops.expressions import where as where
from dovetail.loops.nest import array as array
from dovetail.loops.nest import nest as nest
from dovetail.loops.record import loop as loop
from dovetail.machine.machine import Machine as Machine
from dovetail.matmul.all_gather import AllGatherMatmul as AllGatherMatmul
from dovetail.matmul.all_gather_columns import AllGatherColumnsMatmul as AllGatherColumnsMatmul
from dovetail.matmul.all_reduce import MatmulAllReduce as MatmulAllReduce
from dovetail.matmul.all_to_all_first import AllToAllMatmul as AllToAllMatmul
from dovetail.matmul.all_to_all_last import MatmulAllToAll as MatmulAllToAll
from dovetail.matmul.reduce_scatter import MatmulReduceScatter as MatmulReduceScatter
from dovetail.matmul.shift import MatmulShift as MatmulShift
from dovetail.pipeline.band_operator import BandOperator
from dovetail.pipeline.operator import PipelineOperator
from dovetail.planner.plan import Plan as Plan
from dovetail.planner.predict import simulate as simulate
from dovetail.prober.take import Budget
from dovetail.report.notebook import explain as explain
from dovetail.run.arrays import Array
from dovetail.run.executor import Executor
from dovetail.run.requests import Request as Request
from dovetail.run.shared.arrays import empty as empty
from dovetail.run.shared.arrays import share as share
from dovetail.run.shared.world import world as world
from dovetail.stencil.operator import StencilOperator
from dovetail.timeline.compare import compare as compare
from dovetail.timeline.timeline import Timeline as Timeline
from dovetail.tuner.machines import probe as probe
from dovetail.tuner.result import TuneResult as TuneResult

__version__: str

def plan(
    operator: Operator,
    machine: Machine | str,
    *,
    ranks: int | None = ...,
    schedule: str = ...,
    contention: float | None = ...,
    noise: float = ...,
    extrapolate: bool = ...,
    reading: str | None = ...,
    floor: int | None = ...,
    align: int | None = ...,
    max_tiles: int | None = ...,
    rows_per_message: int | None = ...,
    by: str | None = ...,
    ficco_threshold_s: float | None = ...,
    depth: int | None = ...,
    tile: int | None = ...,
    grain: int | None = ...,
    **options: Any,
) -> Plan: ...
def tune(
    operator: Operator,
    ranks: int,
    *,
    out: Path | str = ...,
    executor: Executor | None = ...,
    machine: Machine | None = ...,
    schedule: str = ...,
    contention: float | None = ...,
    rounds: int = ...,
    budget_s: float = ...,
    probing: Budget | None = ...,
    fresh: bool = ...,
    seed: int | None = ...,
    say: Say | None = ...,
    reading: str | None = ...,
    floor: int | None = ...,
    align: int | None = ...,
    max_tiles: int | None = ...,
    rows_per_message: int | None = ...,
    by: str | None = ...,
    ficco_threshold_s: float | None = ...,
    depth: int | None = ...,
    tile: int | None = ...,
    grain: int | None = ...,
    **options: Any,
) -> TuneResult: ...
def all_gather_matmul(a: Any, b: Any, comm: Any, *, out: Any = ..., gathered: Any = ...) -> Any: ...
def all_gather_columns_matmul(a: Any, b: Any, comm: Any, *, out: Any = ..., gathered: Any = ...) -> Any: ...
def all_to_all_matmul(a: Any, b: Any, comm: Any, *, out: Any = ..., counts: Any = ...) -> Any: ...
def matmul_all_reduce(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Any: ...
def matmul_all_to_all(a: Any, b: Any, comm: Any, *, out: Any = ..., counts: Any = ...) -> Any: ...
def matmul_reduce_scatter(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Any: ...
def matmul_shift(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Any: ...
def begin_all_reduce(array: Array, comm: Any, op: str = ..., out: Array | None = ...) -> Request[Array]: ...
def begin_all_gather(array: Array, comm: Any, out: Array | None = ...) -> Request[Array]: ...
def begin_reduce_scatter(array: Array, comm: Any, op: str = ..., out: Array | None = ...) -> Request[Array]: ...
def begin_all_to_all(array: Array, comm: Any, out: Array | None = ...) -> Request[Array]: ...
def begin_broadcast(array: Array, comm: Any, root: int = ...) -> Request[Array]: ...
def begin_reduce(
    array: Array, comm: Any, root: int = ..., op: str = ..., out: Array | None = ...
) -> Request[Array | None]: ...
def begin_gather(array: Array, comm: Any, root: int = ..., out: Array | None = ...) -> Request[Array | None]: ...
def begin_scatter(array: Array | None, comm: Any, root: int = ..., out: Array | None = ...) -> Request[Array]: ...
def begin_all_to_next(array: Array, comm: Any, out: Array | None = ...) -> Request[Array | None]: ...
def begin_all_gather_v(array: Array, counts: Sequence[int], comm: Any, out: Array | None = ...) -> Request[Array]: ...
def begin_reduce_scatter_v(
    array: Array, counts: Sequence[int], comm: Any, op: str = ..., out: Array | None = ...
) -> Request[Array]: ...
def begin_all_to_all_v(array: Array, counts: Any, comm: Any, out: Array | None = ...) -> Request[Array]: ...
def begin_all_gather_matmul(a: Any, b: Any, comm: Any, *, out: Any = ..., gathered: Any = ...) -> Request[Any]: ...
def begin_all_gather_columns_matmul(
    a: Any, b: Any, comm: Any, *, out: Any = ..., gathered: Any = ...
) -> Request[Any]: ...
def begin_all_to_all_matmul(a: Any, b: Any, comm: Any, *, out: Any = ..., counts: Any = ...) -> Request[Any]: ...
def begin_matmul_all_reduce(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Request[Any]: ...
def begin_matmul_all_to_all(a: Any, b: Any, comm: Any, *, out: Any = ..., counts: Any = ...) -> Request[Any]: ...
def begin_matmul_reduce_scatter(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Request[Any]: ...
def begin_matmul_shift(a: Any, b: Any, comm: Any, *, out: Any = ...) -> Request[Any]: ...

Jacobi1d: type[StencilOperator]
Jacobi2d: type[StencilOperator]
Jacobi3d: type[StencilOperator]
Heat3d: type[StencilOperator]
Acoustic3d: type[StencilOperator]
Acoustic3d4: type[StencilOperator]
Acoustic3d6: type[StencilOperator]
Acoustic3d8: type[StencilOperator]
Fdtd2d: type[StencilOperator]
Laplace2d: type[StencilOperator]
RedBlack2d: type[StencilOperator]
Wave1d: type[StencilOperator]
SyncP2p: type[PipelineOperator]
GaussSeidel2d: type[PipelineOperator]
Sor2d: type[PipelineOperator]
Ssor2d: type[PipelineOperator]
Seidel1d: type[BandOperator]
Seidel2d: type[PipelineOperator]
Lcs: type[PipelineOperator]
SmithWaterman: type[PipelineOperator]
TripleNest: type[PipelineOperator]
