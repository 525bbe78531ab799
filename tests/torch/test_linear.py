"""The linear layers of dovetail.torch: their values, gradients, registration, errors and plans on 2 and 3 ranks."""

import needs
import pytest
from forked_ranks import Job, by_check, cache_in, checks_of, ranks_of, run_jobs

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_linear_ranks.py"
CHECKS = checks_of(PROGRAM)
ON_TWO = {"check_strides_of_fake_tensors_and_the_registry", "check_compiled"}  # seconds long, alike on more ranks


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """All checks on 2 and on 3 ranks: {number of ranks: how they `Ended`}."""
    jobs = {}
    for size in (2, 3):
        folder = str(tmp_path_factory.mktemp("ranks"))
        names = [name for name in CHECKS if size == 2 or name not in ON_TWO]
        jobs[size] = Job([PROGRAM, folder, *names], ranks_of(size, **cache_in(folder)))
    found = run_jobs(jobs.values(), limit_s=250, modules=["torch._dynamo", "torch.testing._internal.optests"])
    return dict(zip(jobs, found, strict=True))


@pytest.mark.parametrize(
    ("ranks", "check"), [(2, each) for each in CHECKS] + [(3, each) for each in CHECKS if each not in ON_TWO]
)
def test_operators(ended, ranks, check):
    printed, codes = ended[ranks]
    texts = by_check(printed)[check]
    assert set(texts) == set(range(ranks)), printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert codes == [0] * ranks, printed[-3000:]


@pytest.mark.parametrize("tiles", [2, 3])
def test_a_tile_of_a_reduce_scatter_is_one_product_on_every_rank(tiles):
    from dovetail.matmul.gather import even_tiles
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.lanes import BEGIN, PRODUCT, Lanes

    case = Case("reduce_scatter", 3, 36, (8,), (16,), "float32")
    program = case.program(case.tiled("uniform", even_tiles(case.tiled_rows, tiles)))
    for rank in range(3):
        steps = Lanes(program, rank, "reduce_scatter").steps
        assert [step.what for step in steps[: 2 * tiles]] == [PRODUCT, BEGIN] * tiles
        assert sum(step.rows for step in steps if step.what == PRODUCT) == 36


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_a_tile_of_columns_is_one_product_on_every_rank(kind):
    from dovetail.matmul.gather import even_tiles
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.lanes import PRODUCT
    from dovetail.torch.linear.plans import lanes_of

    case = Case(kind, 3, 36, (8,), (16,), "float32")
    schedule = case.tiled("uniform", even_tiles(16, 3), across=True)
    for rank in range(3):
        lanes = lanes_of(case, schedule, rank)
        assert [(each.start, each.stop) for each in lanes.columns] == [(0, 6), (6, 11), (11, 16)]
        assert sum(step.rows * lanes.scale for step in lanes.steps if step.what == PRODUCT) == pytest.approx(36)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_other_ranks_are_sent_before_the_own_one_is_multiplied(ranks, across):
    from dovetail.matmul.gather import even_tiles
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.lanes import BEGIN, LATER, PRODUCT, WAIT
    from dovetail.torch.linear.plans import lanes_of

    case = Case("reduce_scatter", ranks, 12 * ranks, (8,), (16,), "float32", later=True)
    length = 16 if across else 12
    schedule = case.tiled("uniform", even_tiles(length, 2), across=across, by="messages")
    for rank in range(ranks):
        lanes = lanes_of(case, schedule, rank)
        assert [step.what for step in lanes.steps] == [PRODUCT, BEGIN, PRODUCT, BEGIN, PRODUCT, LATER, WAIT, WAIT]
        multiplied = [step.rows for step in lanes.steps if step.what == PRODUCT]
        assert multiplied == [(ranks - 1) * length // 2, (ranks - 1) * length // 2, length]
        moved = sum(step.rows * lanes.scale for step in lanes.steps if step.what == BEGIN)
        assert moved == pytest.approx(case.rows)


def test_weight_gradients_of_own_rows_are_made_before_a_gather_is_waited_for():
    from dovetail.matmul.gather import even_tiles
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.lanes import BEGIN, LATER, PRODUCT, WAIT
    from dovetail.torch.linear.plans import lanes_of

    case = Case("all_gather", 2, 12, (8,), (16,), "float32", gathered=True, later=True)
    serial, *_ = case.schedules()
    tiled = case.tiled("uniform", even_tiles(12, 2))
    for rank in range(2):
        order = [step.what for step in lanes_of(case, tiled, rank).steps]
        own = order.index(PRODUCT)
        assert order[: own + 3] == [BEGIN, BEGIN, PRODUCT, LATER, WAIT], order
        assert lanes_of(case, serial, rank).steps[-1].what == LATER


def test_predictions_count_what_products_and_messages_cost_each_other():
    from dovetail.matmul.tiles import pipeline_s
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.costs import Costs
    from dovetail.torch.linear.plans import lanes_of

    case = Case("all_reduce", 2, 36, (8,), (16,), "float32")
    tiles = (16, 12, 8)
    lanes = lanes_of(case, case.tiled("optimal", tiles), 0)
    product_s, wire_s = (lambda rows: 3e-3 * rows), (lambda rows: 2e-3 * rows)
    alone = Costs({False: product_s}, wire_s, wire_s, 0.0, {False: 1}, lambda rows: 0.0, (1.0, 1.0))
    beside = alone._replace(slowed=(1.5, 1.25))
    for costs in (alone, beside):
        by_product, by_wire = costs.slowed
        wanted = pipeline_s(tiles, product_s, wire_s, by_product, by_wire)
        assert costs.predicted_s(lanes, is_handed=True) == pytest.approx(wanted)
    assert beside.apart().predicted_s(lanes, is_handed=True) == alone.predicted_s(lanes, is_handed=True)
    begun = alone._replace(begin_s=lambda rows: 1e-3)
    assert begun.predicted_s(lanes, is_handed=True) > alone.predicted_s(lanes, is_handed=True)
    best = {slowed: case.best_tiled(product_s, wire_s, 1, slowed, across=False).tiles for slowed in ((1, 1), (9, 9))}
    assert len(best[9, 9]) <= len(best[1, 1])


def test_what_a_tile_takes_beyond_its_prediction_counts_for_all_schedules_of_its_form(monkeypatch):
    from types import SimpleNamespace

    from dovetail.torch.linear import warming
    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.costs import Costs
    from dovetail.torch.linear.lanes import BEGIN
    from dovetail.torch.linear.plans import lanes_of

    case = Case("all_reduce", 2, 96, (8,), (96,), "float32")
    product_s, wire_s = (lambda rows: 3e-3 * rows), (lambda rows: 3e-3 * rows)
    costs = Costs(dict.fromkeys((False, True), product_s), wire_s, wire_s, 0.0, {False: 1, True: 1}, wire_s, (1.0, 1.0))
    costs = costs._replace(begin_s=lambda rows: 0.0)
    of_tile = {False: 20e-3, True: 0.0}  # seconds, by whether tiles are columns

    def rounds(candidates, group, run, count):
        tiles = [sum(step.what == BEGIN for step in lanes.steps) for _, lanes, _ in candidates]
        takes = [
            costs.predicted_s(lanes, True) + 5e-3 + number * of_tile[lanes.across]
            for (_, lanes, _), number in zip(candidates, tiles, strict=True)
        ]
        return {place: [seconds] * count for (place, *_), seconds in zip(candidates, takes, strict=True)}

    monkeypatch.setattr(warming, "_rounds", rounds)
    late = warming._late(case, SimpleNamespace(rank=lambda: 0), None, costs)
    for across, each_s in of_tile.items():
        found = late[across, False]
        assert found.each_s == pytest.approx(each_s, abs=1e-9)
        assert found.of(case.tiled("uniform", (16,) * 6, across=across)) == pytest.approx(5e-3 + 6 * each_s)
    best = {across: len(tiles) for across, tiles in warming._best(case, costs, late)}
    assert 1 < best[False] < best[True]
    schedules = list(case.schedules())
    lanes = [lanes_of(case, each, 0) for each in schedules]
    predictions = warming._predictions(schedules, lanes, costs, late)
    assert predictions[0] == costs.predicted_s(lanes[0], False)
    for schedule, each, seconds in list(zip(schedules, lanes, predictions, strict=True))[1:]:
        more = 5e-3 + len(schedule["tiles"]) * of_tile[each.across]
        assert seconds == pytest.approx(costs.predicted_s(each, True) + more)


def test_plans_are_saved_by_what_connects_the_ranks():
    from types import SimpleNamespace

    from dovetail.torch.linear.case import Case
    from dovetail.torch.linear.plans import place_of

    case = Case("all_reduce", 2, 36, (8,), (16,), "float32")
    places = ("", "sockets, hosts [0, 1]", "mpi, hosts [0, 1]")
    groups = [SimpleNamespace(_ranks=SimpleNamespace(where=where)) for where in places]
    assert len({place_of(case, group).path for group in groups}) == 3
