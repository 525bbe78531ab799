"""torch.ops.symm_mem on CPU tensors, and plans of parallelize_module that overlap, on 2 ranks."""

import needs
import pytest
from forked_ranks import Job, by_check, cache_in, checks_of, ranks_of, run_jobs

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_parallel_ranks.py"
CHECKS = checks_of(PROGRAM)
SLOW_TO_IMPORT = ("torch.distributed.tensor.parallel", "torch.testing._internal.distributed._tensor.common_dtensor")
RANKS = 2


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How the job of all checks `Ended`."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    (ended,) = run_jobs(
        [Job([PROGRAM, folder, *CHECKS], ranks_of(RANKS, **cache_in(folder)))], limit_s=200, modules=SLOW_TO_IMPORT
    )
    return ended


@pytest.mark.parametrize("check", CHECKS)
def test_parallel(ended, check):
    texts = by_check(ended.printed)[check]
    assert set(texts) == set(range(RANKS)), ended.printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert ended.codes == [0] * RANKS, ended.printed[-3000:]
