"""problems: the shipped nests whose iterations depend on one another, as operators."""

from dovetail.loops import problems
from dovetail.pipeline.operators import pipeline_of

GaussSeidel2d = pipeline_of(problems.gauss_seidel2d)
Lcs = pipeline_of(problems.lcs)
Seidel1d = pipeline_of(problems.seidel1d)
Seidel2d = pipeline_of(problems.seidel2d)
SmithWaterman = pipeline_of(problems.smith_waterman)
Sor2d = pipeline_of(problems.sor2d)
Ssor2d = pipeline_of(problems.ssor2d)
SyncP2p = pipeline_of(problems.sync_p2p)
TripleNest = pipeline_of(problems.triple_nest)
