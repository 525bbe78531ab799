"""Files of ours that were cut, changed by hand, or written by another version are refused in one clear paragraph."""

import copy
import json
import random

import pytest

import dovetail as dt
from dovetail.core import DovetailError
from dovetail.timeline import Timeline

pytestmark = pytest.mark.usefixtures("own_cache")  # what else was saved here does not matter

ODD = (None, "", -1, 0, 1.5, [], {}, "x", 10**12, True, [[]], float("nan"))
VERBS = (
    ("show", "FILE"),
    ("verify", "FILE"),
    ("simulate", "FILE", "--machine", "two-hosts-1gbit"),
    ("simulate", "FILE"),
    ("compare", "FILE", "FILE"),
    ("compile", "FILE", "--to", "json"),
    ("run", "FILE", "--on", "numpy", "--rounds", "1"),
)


@pytest.fixture(scope="module")
def plan():
    operator = dt.AllGatherMatmul(16, 9, 8)
    return dt.plan(operator, "two-hosts-1gbit", extrapolate=True, schedule="uniform-fused-1D").to_json()


def changed(document, path, *value):
    """A copy with another value at a path, or without it."""
    made = at = copy.deepcopy(document)
    for step in path[:-1]:
        at = at[step]
    if value:
        at[path[-1]] = value[0]
    else:
        del at[path[-1]]
    return made


def paths(document, depth=4, before=()):
    """Every place in a document, of lists the first two."""
    for key, value in document.items() if isinstance(document, dict) else list(enumerate(document))[:2]:
        yield (*before, key)
        if isinstance(value, dict | list) and depth > 1:
            yield from paths(value, depth - 1, (*before, key))


def is_clear(code, err):
    """Whether a command ended as it should: well, or with an error for the user."""
    return code in (0, 1, 2) and "fault of dovetail" not in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("verb", "path", "value"),
    [
        ("compare", ("predicted", "columns", "lane", 0), ()),
        ("compare", ("predicted", "num_ranks"), ()),
        ("compare", ("predicted", "columns", "lane", 0), (9,)),
        ("show", ("choices", "parameters", "by"), ()),
        ("show", ("noise",), ("x",)),
        ("show", ("ranks",), (10**12,)),
        ("show", ("operator", "several"), (10**12,)),
        ("run", ("choices", "slice_bytes"), ({},)),
        ("run", ("choices", "progress"), ("engine",)),
        ("run", ("serial", "parameters", "tiles"), ([[]],)),
    ],
)
def test_a_plan_that_was_changed(call, tmp_path, plan, verb, path, value):
    (tmp_path / "plan.json").write_text(json.dumps(changed(plan, path, *value)))
    words = next(words for words in VERBS if words[0] == verb)
    code, _, err = call(*(tmp_path / "plan.json" if word == "FILE" else word for word in words))
    assert code in (1, 2)
    assert is_clear(code, err), err


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kernels", 0, 0), {}),
        (("lanes", 0, 0), [[]]),
        (("lines", 1), {}),
        (("buffers", 0, 0), {}),
        (("posts", 1, "region", 1), 1.5),
        (("made_of",), 3),
        (("made_of", "operator", "m"), 17),
        (("made_of", "choices"), []),
    ],
)
def test_a_program_that_was_changed(call, tmp_path, plan, path, value):
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert call("compile", tmp_path / "plan.json", "--to", "json", "--out", tmp_path / "program.json")[0] == 0
    document = json.loads((tmp_path / "program.json").read_text())
    (tmp_path / "changed.json").write_text(json.dumps(changed(document, path, value)))
    code, _, err = call("run", tmp_path / "changed.json", "--on", "numpy", "--rounds", "1")
    assert code in (1, 2)
    assert is_clear(code, err), err


def test_whatever_was_changed(call, tmp_path, plan):
    """Of a hundred changes, at random, none is called a fault of ours, and none hangs."""
    rng, everywhere = random.Random(7), list(paths(plan))
    for _ in range(100):
        path = rng.choice(everywhere)
        made = changed(plan, path) if rng.random() < 0.3 else changed(plan, path, rng.choice(ODD))
        (tmp_path / "plan.json").write_text(json.dumps(made))
        words = [tmp_path / "plan.json" if word == "FILE" else word for word in rng.choice(VERBS)]
        code, _, err = call(*words)
        assert is_clear(code, err), (words, path, err)


@pytest.mark.parametrize("verb", ["show", "verify", "simulate", "run", "compile"])
def test_of_another_version_or_cut(call, tmp_path, plan, verb):
    for schema in ("dovetail.plan/1", "dovetail.plan/3"):
        (tmp_path / "plan.json").write_text(json.dumps(plan | {"schema": schema}))
        code, _, err = call(verb, tmp_path / "plan.json")
        assert code == 2
        assert "a plan of another version" in err
        assert "make the plan anew" in err
    (tmp_path / "plan.json").write_text(json.dumps(plan)[:700])
    code, _, err = call(verb, tmp_path / "plan.json")
    assert code == 2
    assert "it was cut" in err


@pytest.mark.parametrize("verb", ["show", "compare"])
def test_a_file_that_lacks_a_field_is_named(call, tmp_path, plan, verb):
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(changed(plan, ("operator",)) if verb == "show" else changed(plan, ("predicted", "lanes")))
    )
    code, _, err = call(verb, path, *([path] if verb == "compare" else []))
    assert code == 2
    assert str(path) in err
    assert "no field '" in err


def test_columns_of_a_timeline_fit_together(plan):
    document = plan["predicted"]
    assert Timeline.from_json(document).to_json() == document
    for name in ("rank", "lane", "name"):
        with pytest.raises(DovetailError, match="has values outside its table"):
            Timeline.from_json(changed(document, ("columns", name, 0), 99))
    with pytest.raises(DovetailError, match="differ in length"):
        Timeline.from_json(changed(document, ("columns", "end_s", 0)))
    for end_s in (-5.0, float("nan"), float("inf")):
        with pytest.raises(DovetailError, match="each end after its start"):
            Timeline.from_json(changed(document, ("columns", "end_s", 0), end_s))
