"""torch.distributed on backend "dovetail": calls on 2 and 3 ranks, deaths, restarts, and torch's own cases."""

import json
import os
import subprocess
import sys

import needs
import pytest
from forked_ranks import Job, by_check, checks_of, ranks_of, run_jobs

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_ranks.py"
CHECKS = checks_of(PROGRAM)
CASES = (  # of torch's DistributedTest: of each kind that runs on CPUs
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_complex",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_product",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_all_to_all",
    "test_all_to_all_single_unequal_split_complex",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast",
    "test_ddp_logging_data_cpu",
    "test_destroy_full_group",
    "test_gather",
    "test_get_future",
    "test_irecv",
    "test_isend_torch_profiler",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """All checks on 2 ranks in Python, and on 3 of the native group: {number of ranks: how they `Ended`}."""
    forms = {2: "0", 3: ""}
    jobs = {
        size: Job([PROGRAM, tmp_path_factory.mktemp("ranks")], ranks_of(size, DOVETAIL_TORCH_NATIVE=form))
        for size, form in forms.items()
    }
    return dict(zip(jobs, run_jobs(jobs.values(), limit_s=200), strict=True))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls(ended, ranks, check):
    printed, codes = ended[ranks]
    texts = by_check(printed)[check]
    assert set(texts) == set(range(ranks)), printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert codes == [0] * ranks, printed[-3000:]


DYING = """
import json, os, signal, sys, time
import torch, torch.distributed as dist, dovetail.torch
rank, how = int(os.environ["DOVETAIL_RANK"]), sys.argv[2]
dist.init_process_group("dovetail", init_method=f"file://{sys.argv[1]}/{how}", rank=rank, world_size=3)
tensor = torch.ones(100000)
dist.all_reduce(tensor)
if rank == 1:
    time.sleep(0.3)  # the others wait by then
    print(json.dumps({"dies": time.time()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    if how == "recv":
        dist.recv(tensor, 1)
    elif how == "async":
        dist.all_reduce(tensor, async_op=True).wait()
    else:
        dist.all_reduce(tensor)
except RuntimeError as error:
    print(json.dumps({"said": str(error), "at": time.time()}), flush=True)
open(f"{sys.argv[1]}/{how}.{rank}", "w").close()
while not os.path.exists(f"{sys.argv[1]}/{how}.{2 - rank}"):  # both hear of rank 1 before either ends
    time.sleep(0.01)
os._exit(0)
"""
WAYS = ("now", "async", "recv")


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    """Three ranks of which one was killed while others waited for it: {in which call: how they `Ended`}."""
    (program := (folder := tmp_path_factory.mktemp("dying")) / "dying.py").write_text(DYING)
    return dict(zip(WAYS, run_jobs([Job([program, folder, how], ranks_of(3)) for how in WAYS]), strict=True))


@pytest.mark.parametrize("how", WAYS)
def test_a_killed_rank_is_named_on_all_others(how, deaths):
    printed, codes = deaths[how]
    lines = [json.loads(line) for line in printed.replace("}{", "}\n{").splitlines() if line.startswith("{")]
    (died,) = [each["dies"] for each in lines if "dies" in each]
    others = [each for each in lines if "said" in each]
    assert len(others) == 2, printed[-3000:]
    for each in others:
        assert "rank 1 has died" in each["said"], each
        assert each["at"] - died < 10
    assert codes == [0, -9, 0], printed[-3000:]


def test_a_rank_that_does_not_come_is_named():
    import torch.distributed as dist

    from dovetail.core import RunError
    from dovetail.torch.ranks import meet

    with pytest.raises(RunError, match="ranks 1 of 2 did not come within 0 s"):
        meet(dist.HashStore(), 0, 2, 0.1)


EXAMPLES = ("ddp", "fsdp2", "mlp")
RESTARTED = """
import os, runpy, sys
import torch, torch.distributed as dist, dovetail.torch
dist.init_process_group("dovetail")
dist.all_reduce(tensor := torch.ones(3))
turn, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
if turn == "0" and rank == 1:
    os._exit(3)
dist.barrier()
print(f"<turn {turn}: {tensor.tolist()}>", flush=True)
dist.destroy_process_group()
for example in sys.argv[1:]:
    print(f"<{example} begins on rank {rank}>", flush=True)
    runpy.run_path(example, run_name="__main__")
    print(f"<{example} has ended on rank {rank}>", flush=True)
"""


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """One job of torchrun on two ranks, of which one fails; started anew, they run the examples one after another."""
    (program := tmp_path_factory.mktemp("torchrun") / "restarted.py").write_text(RESTARTED)
    examples = [needs.ROOT / "examples" / "torch" / f"{name}.py" for name in EXAMPLES]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", program, *examples]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=200, env=env, check=False)


@pytest.mark.slow
def test_torchrun_starts_failed_ranks_anew(torchrun):
    assert torchrun.stdout.count("<turn 1: [2.0, 2.0, 2.0]>") == 2, torchrun.stderr[-3000:]
    assert torchrun.returncode == 0, torchrun.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_reach_the_loss_of_one_rank(name, torchrun):
    printed = torchrun.stdout
    assert printed.count(f"{name}.py has ended on rank") == 2, torchrun.stderr[-3000:]
    own = printed[printed.index(f"{name}.py begins") : printed.rindex(f"{name}.py has ended")]
    assert "on 2 ranks" in own
    assert torchrun.returncode == 0, torchrun.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.needs("expecttest")
def test_cases_of_torch(tmp_path):
    tool, kept = needs.ROOT / "bench" / "pytorch" / "torch_conformance.py", tmp_path / "found.json"
    command = [sys.executable, tool, "--backends", "dovetail", "--only", *CASES, "--json", kept]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(kept.read_text())["dovetail"]
    assert {name: why for name, (how, why) in found.items() if how != "passed"} == {}


def test_a_program_on_gloo_ends_in_order():
    command = [sys.executable, needs.RANKS / "torch_end_ranks.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr
