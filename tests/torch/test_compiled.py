"""The pass of torch.compile on 2 ranks: each pattern against eager results, what it leaves, and planted faults."""

import needs
import pytest
from forked_ranks import Job, by_check, cache_in, checks_of, ranks_of, run_jobs

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]
PROGRAM = needs.RANKS / "torch_compiled_ranks.py"
CHECKS = checks_of(PROGRAM)
SLOW_TO_IMPORT = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor.parallel")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How the job of all checks on 2 ranks `Ended`."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    names = [name for name in CHECKS if name != "check_inductor" or needs.missing("compiler") is None]
    ranks = ranks_of(2, **cache_in(folder), TORCHINDUCTOR_CACHE_DIR=f"{folder}/code")
    (ended,) = run_jobs([Job([PROGRAM, folder, *names], ranks)], limit_s=240, modules=SLOW_TO_IMPORT)
    return ended


@pytest.mark.parametrize("check", CHECKS)
def test_compiled_graphs(ended, check):
    if check == "check_inductor":
        needs.need("compiler")
    texts = by_check(ended.printed)[check]
    assert set(texts) == {0, 1}, ended.printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert ended.codes == [0, 0], ended.printed[-3000:]
