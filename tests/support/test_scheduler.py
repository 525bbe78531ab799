"""How `make test` shares the tests out: all that start ranks or hosts on one worker, of each file the others on one."""

import random
from collections.abc import Iterator
from types import SimpleNamespace

import needs
import pytest

pytest_plugins = ["pytester"]
scheduler = pytest.importorskip("xdist.scheduler", reason="needs xdist: two workers")
FILES = {  # files, and whether some of their tests start ranks or hosts
    "tests/cli/test_cli.py": True,
    "tests/call/test_collectives.py": True,
    "tests/cost/test_curve.py": False,
    "tests/ir/test_text.py": False,
    "tests/run/test_mpi.py": True,
    "tests/sim/test_simulate.py": False,
    "tests/bench/test_testbed_cost.py": True,
    "docs/how.md": False,
}


class Worker:
    """Does its tests one by one, as they are sent to it."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway, self.todo, self.done = SimpleNamespace(id=name), [], []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.todo += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def orders() -> Iterator[list[str]]:
    """Names of tests, file by file, in twenty orders: by chance, one order may suit a broken scheduler."""
    rng = random.Random(0)
    for _ in range(20):
        files = rng.sample(list(FILES), len(FILES))
        named = [f"{file}::test_{i}" for file in files for i in range(rng.randint(1, 5))]
        yield [f"{name}[a]@ranks" if FILES[name.split("::")[0]] and rng.random() < 0.5 else name for name in named]


def shared_out(made, nodes: list[str]) -> list[list[str]]:
    """The tests that each of two workers does, which take turns, by a scheduler that has been made."""
    workers = [Worker("a"), Worker("b")]
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, nodes)
    made.schedule()
    while any(worker.todo for worker in workers):
        for worker in workers:
            if worker.todo:
                worker.done.append(worker.todo.pop(0))
                made.mark_test_complete(worker, worker.done[-1])
    return [[nodes[i] for i in worker.done] for worker in workers]


def check(make) -> None:
    for nodes in orders():
        shares = shared_out(make(), nodes)
        assert sorted(shares[0] + shares[1]) == sorted(nodes)
        ranks = [any(node.endswith("@ranks") for node in share) for share in shares]
        files = [{node.split("::")[0] for node in share if not node.endswith("@ranks")} for share in shares]
        assert all(shares)
        assert not files[0] & files[1], "a file on two workers"
        assert not all(ranks), "two workers start ranks"


@pytest.fixture
def two_workers(pytester):
    return pytester.parseconfig("--tx", "2*popen", "--dist", "loadgroup", "--no-loadscope-reorder")


def test_files_and_ranks_stay_together(request, two_workers):
    check(lambda: request.config.hook.pytest_xdist_make_scheduler(config=two_workers, log=None))


class ByFileAlone(scheduler.LoadFileScheduling):
    """Of files that start ranks, too."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0] + ("@ranks" if nodeid.endswith("@ranks") else "")


@pytest.mark.parametrize(
    ("broken", "why"),
    [(scheduler.LoadGroupScheduling, "a file on two workers"), (ByFileAlone, "two workers start ranks")],
)
def test_a_broken_scheduler_is_noticed(two_workers, broken, why):
    with pytest.raises(AssertionError, match=why):
        check(lambda: broken(two_workers))


MARKED = """
import pytest

def test_1(): pass

@pytest.mark.mpi
def test_2(): pass

@pytest.mark.testbed
class TestHosts:
    def test_3(self): pass
"""


def test_those_that_start_ranks_are_one_group_and_come_first(request, pytester):
    """By their marks, each for itself, as workers collect them."""
    ours = request.config.pluginmanager.get_plugin(str(needs.ROOT / "tests" / "conftest.py"))
    items = pytester.getitems(MARKED)
    config = SimpleNamespace(getoption=lambda name, default: True)
    ours.pytest_collection_modifyitems(config, items)
    groups = [(item.name, [mark.args[0] for mark in item.iter_markers("xdist_group")]) for item in items]
    assert groups == [("test_2", ["ranks"]), ("test_3", ["ranks"]), ("test_1", [])]
