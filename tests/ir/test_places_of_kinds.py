"""Every place that must name a kind of collective: a new row of the table alone is told what else it needs."""

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from needs import ROOT

from dovetail.collective.algorithms import ALGORITHMS
from dovetail.ir.collectives import COLLECTIVES, Traits


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def names_in(kind: str, path: str) -> bool:
    """Whether a file names the kind as a whole word, or as a string."""
    return bool(re.search(rf"\b{kind}\b", text_of(path)))


class Place(NamedTuple):
    """A place that names kinds: its file, what is needed there, which kinds need it, and whether it names a kind."""

    path: str
    needs: str
    asked_of: Callable[[Traits], object]
    names: Callable[[str, Traits, str], object]


def of_c(kind: str, traits: Traits, path: str) -> object:
    return names_in(f"DT_{kind.upper()}", path)


def of_mpi(kind: str, traits: Traits, path: str) -> object:
    calls = (
        [f"MPI_{name}" for name in (traits.mpi[0], f"I{traits.mpi[0].lower()}")]
        if traits.mpi
        else [f"DT_{kind.upper()}"]
    )
    return all(names_in(call, path) for call in calls)


def of_trace(kind: str, traits: Traits, path: str) -> object:
    return all(f'Collective("{call}"' in text_of(path) for call in traits.mpi)


def as_string(kind: str, traits: Traits, path: str) -> object:
    return f'"{kind}"' in text_of(path)


def as_function(kind: str, traits: Traits, path: str) -> object:
    return kind in {node.name for node in ast.parse(text_of(path)).body if isinstance(node, ast.FunctionDef)}


def as_knob(kind: str, traits: Traits, path: str) -> object:
    """Whether the tables of both MPI libraries have a row of the kind."""
    return text_of(path).count(f'\n    "{kind}": (') == 2


PLACES = (
    Place("native/run/mpi_table.h", "a row of DT_KINDS", lambda t: True, lambda k, t, p: f'"{k}"' in text_of(p)),
    Place(
        "native/ir/program.hpp",
        "a number in CollectiveKind",
        lambda t: t.is_op,
        lambda k, t, p: names_in("k" + k.title().replace("_", ""), p),
    ),
    Place("native/run/mpi_comm.c", "the library's call, blocking and not", lambda t: True, of_mpi),
    Place("native/run/comm.cpp", "the bytes of its arrays, in `sides`", lambda t: t.in_parts, of_c),
    Place("native/shm/transport.cpp", "messages through shared memory, in `plan`", lambda t: True, of_c),
    Place("native/bind/arrays.cpp", "the fast way to its arrays, in `part_of`", lambda t: t.chosen, of_c),
    Place("native/prober/baseline.c", "the call to be timed", lambda t: not t.even, of_c),
    Place("src/dovetail/prober/baselines.py", "the libraries' knobs", lambda t: t.moves and not t.even, as_knob),
    Place("src/dovetail/trace/recorder/mpi_calls.py", "the recorder's row of each MPI call", lambda t: t.mpi, of_trace),
    Place("src/dovetail/call/collectives.py", "a function", lambda t: t.moves, as_function),
    Place("src/dovetail/collective/operators.py", "an operator", lambda t: t.chosen, as_string),
    Place("src/dovetail/ir/registry.py", "the operator's row", lambda t: t.chosen, as_string),
    Place(
        "src/dovetail/collective/algorithms/__init__.py",
        "an algorithm",
        lambda t: t.moves,
        lambda k, t, p: any(f"_{name}".endswith(f"_{k}") for name in ALGORITHMS),
    ),
    Place(
        "src/dovetail/__init__.pyi",
        "both its functions (python tools/face_stub.py)",
        lambda t: t.moves,
        lambda k, t, p: names_in(k, p) and names_in(f"begin_{k}", p),
    ),
    Place("docs/collectives.md", "a word to users", lambda t: t.moves, lambda k, t, p: names_in(k, p)),
    Place("tests/ranks/begin_ranks.py", "a run on ranks", lambda t: t.moves, as_string),
)


def missing(kinds: dict[str, Traits]) -> list[str]:
    """Return what is missing for these kinds, a line for each place that should name one and does not."""
    return [
        f"{kind}: {place.path} lacks {place.needs}"
        for kind, traits in kinds.items()
        for place in PLACES
        if place.asked_of(traits) and not place.names(kind, traits, place.path)
    ]


def test_every_place_names_every_kind():
    assert not missing(COLLECTIVES), "\n".join(["a kind is more than its row:", *missing(COLLECTIVES)])


def test_a_kind_that_has_only_its_row_is_told_every_place():
    scan = Traits(joined=True, reduces=True, is_op=True, chosen=True, mpi=("Prefix",))
    assert [line.partition(" lacks ")[0] for line in missing({"prefix": scan})] == [f"prefix: {p.path}" for p in PLACES]


@pytest.mark.parametrize("kind", ["gather", "all_gather_v", "barrier"])
def test_a_kind_is_asked_only_for_what_its_row_says(kind):
    asked = {place.path for place in PLACES if place.asked_of(COLLECTIVES[kind])}
    assert "native/run/mpi_table.h" in asked
    assert "src/dovetail/ir/registry.py" not in asked
