"""tile: `dovetail tile`: tile a loop nest: is the tiling legal, what does a tile send, how many time steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.cli import output
from dovetail.cli.options import Json, nearest
from dovetail.core import OperatorError, save_text

if TYPE_CHECKING:
    from dovetail.loops.matrices import Matrix, Vector
    from dovetail.tiling.facts import Bounded, Counts, TileFacts
    from dovetail.tiling.nest_code import NestCode
    from dovetail.tiling.search import BestTile
    from dovetail.tiling.spaces import Space
    from dovetail.tiling.tiling import Tiling

VOLUME = 1000  # points per tile, if neither --tile nor --volume is given


def _criterion(value: str) -> str:
    from dovetail.tiling.search import CRITERIA

    return nearest(value, CRITERIA, "criterion")


def _dtype(value: str | None) -> str | None:
    from dovetail.loops.types import DTYPES

    return None if value is None else nearest(value, DTYPES, "dtype")


def tile(
    problem: Annotated[
        str | None,
        typer.Argument(help="A nest, shipped or yours (my_loops.py:name), instead of --deps and --space."),
    ] = None,
    grid: Annotated[str | None, typer.Option("--grid", help="The nest's points along each axis, 400x300.")] = None,
    steps: Annotated[int, typer.Option("--steps", help="The nest's steps, if it has a step loop.", min=1)] = 1,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Type of the nest's arrays that declare none. Default: float64.", callback=_dtype),
    ] = None,
    deps: Annotated[
        str | None, typer.Option("--deps", help='D, row by row; its columns are dependence vectors: "3,1;1,2".')
    ] = None,
    sides: Annotated[
        str | None, typer.Option("--tile", help='P, row by row; its columns are the sides: "6,2;2,4", or 4x4x444.')
    ] = None,
    volume: Annotated[
        int | None, typer.Option("--volume", help="Find the best tile of this many points instead.", min=1)
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="What --volume minimises: V_comm by the formula, (point, dependence) pairs, or values sent.",
            callback=_criterion,
        ),
    ] = "formula",
    mapped: Annotated[
        int | None,
        typer.Option("--map", help="Dimension (from 0) along which one processor has all tiles.", min=0),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option("--space", help="Bounds: 16x16x16384, or 0:16,1:20, or '{ [i, j] : 0 <= i <= j < 9 }'."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", help="With --volume, --space and --map: least number of chains of tiles.", min=1),
    ] = None,
    points: Annotated[
        bool, typer.Option("--points", help="With --json: list the points of each message.", show_default=False)
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw tile, dependences, neighbours and time steps to this SVG.")
    ] = None,
    emit_c: Annotated[
        Path | None,
        typer.Option(
            "--emit-c",
            help="Write a standalone MPI program of these tiles to this C file; if --space has parameters, the loops.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Tile a loop nest: legality, exact communication, time steps; or find the best tile. Exit code 1 if illegal."""
    from dovetail.loops.matrices import parse_matrix
    from dovetail.tiling.facts import tile_facts
    from dovetail.tiling.spaces import Space
    from dovetail.tiling.tiling import Tiling

    code = _nest_code(problem, grid, steps, dtype, deps, space)
    if code is None:
        matrix, bounds = parse_matrix(deps or "", "--deps"), None if space is None else Space.parse(space)
    else:
        matrix, bounds = code.deps, code.space
        volume = VOLUME if sides is None and volume is None else volume
    _check(matrix, sides, volume, plot, emit_c, bounds)
    found = None if volume is None else _search(matrix, volume, by, mapped, bounds, ranks)
    tiling = found.tiling if found else Tiling(matrix, parse_matrix(sides or "", "--tile"))
    if not json:
        tiling.check_legal(_hint(tiling))
    facts = tile_facts(tiling, None if bounds is None or bounds.parameters else bounds, mapped)
    written = _write(facts, plot, emit_c, bounds, code) if tiling.is_legal else []
    if json:
        output.emit(facts.to_json(points) | {"search": found and _searched(found)})
    else:
        print("\n\n".join([render(facts, found), *(code.notes if code else ()), *map(str, written)]))
    return 0 if tiling.is_legal else 1


def _nest_code(
    problem: str | None, grid: str | None, steps: int, dtype: str | None, deps: str | None, space: str | None
) -> NestCode | None:
    """Return the analysed nest, for C code; None if dependences are given instead."""
    if (problem is None) == (deps is None):
        raise OperatorError(
            "name either a nest or dependences", hint='my_loops.py:name --grid 400x300, or --deps "3,1;1,2"'
        )
    if problem is None and dtype is not None:
        raise OperatorError("dependences have no dtype", found=f"--dtype {dtype}", hint="leave it out, or name a nest")
    if problem is None:
        return None
    from dovetail.ir.abilities import Nested
    from dovetail.ir.registry import operator_class
    from dovetail.tiling.nest_code import nest_code, sizes_of

    if grid is None or space is not None:
        raise OperatorError(f"the space of {problem} follows from its grid", hint="--grid 400x300, and no --space")
    kind = operator_class(problem)
    of_nest: object = kind
    if not isinstance(of_nest, Nested):
        raise OperatorError(f"{problem} is no loop nest", hint="describe the loops by --deps and --space")
    dtype = dtype or "float64"
    made = kind.points(grid=grid, steps=steps if of_nest.nest.parameters else None, dtype=dtype)[0]
    try:
        return nest_code(of_nest.nest, sizes_of(made), dtype)
    except OperatorError as error:
        hint = f"{error.hint}; `dovetail tune` runs it unmodified"
        raise OperatorError(error.what, where=error.where, found=error.found, hint=hint) from None


def _check(
    deps: Matrix, sides: str | None, volume: int | None, plot: Path | None, emit_c: Path | None, space: Space | None
) -> None:
    """Raise OperatorError if options conflict, before anything is computed or written."""
    if (sides is None) == (volume is None):
        raise OperatorError(
            "name either a tile or a volume", hint='--tile "6,2;2,4", or --volume 20 to find the best one'
        )
    if plot is not None:
        from dovetail.report.tile_picture import check_drawable

        check_drawable(len(deps))
        if plot.suffix != ".svg":
            raise OperatorError(
                f"a tile is drawn as SVG, not as '{plot.suffix}'", found=str(plot), hint="call it tile.svg"
            )
    if emit_c is not None and space is None:
        raise OperatorError("loops need bounds", hint="--space '[N] -> { [i, j] : 0 <= i < N and 0 <= j < N }', say")
    if space is not None and emit_c is None:
        space.need_sizes()


def _search(deps: Matrix, volume: int, by: str, mapped: int | None, space: Space | None, ranks: int | None) -> BestTile:
    from dovetail.tiling.search import best_tile

    return best_tile(deps, volume, by=by, mapped=mapped, space=space, ranks=ranks)


def _searched(found: BestTile) -> dict[str, Any]:
    return {"by": found.by, "cost": found.cost, "bound": found.bound, "proved": found.is_proved}


def _hint(tiling: Tiling) -> str:
    """Return a hint for an illegal tile: the best legal tile of the same volume; empty if the tile is legal."""
    if tiling.is_legal:
        return ""
    sides = _search(tiling.deps, tiling.volume, "formula", None, None, None).tiling.sides
    return f'--tile "{_written(sides)}", the best legal tile of {tiling.volume} points'


def _written(matrix: Matrix) -> str:
    return ";".join(",".join(map(str, row)) for row in matrix)


def _write(
    facts: TileFacts, plot: Path | None, emit_c: Path | None, space: Space | None, code: NestCode | None
) -> list[Path]:
    """Write the picture and the C file, if asked for; return their paths."""
    written = []
    if plot is not None:
        from dovetail.report.tile_picture import write_tile_svg

        written.append(write_tile_svg(plot, facts))
    if emit_c is not None and space is not None:
        from dovetail.tiling.mpi_code import program
        from dovetail.tiling.tile_code import source

        text = source(facts.tiling, space) if space.parameters else program(facts.tiling, space, facts.mapped, code)
        written.append(save_text(emit_c, text))
    return written


def render(facts: TileFacts, found: BestTile | None = None) -> str:
    """Return all facts in words and tables."""
    parts = [_matrices(facts.tiling)]
    if found is not None:
        parts.append(_verdict(found))
    if facts.counts is not None:
        parts += [_volumes(facts, facts.counts), _messages(facts, facts.counts)]
    if facts.bounded is not None:
        parts.append(_bounded(facts.bounded))
    return "\n\n".join([*parts, *facts.notes])


def _matrices(tiling: Tiling) -> str:
    hd = "all of HD at least 0: legal"
    hd += ", and at most 1: a dependence ends in the tile or in a next one" if tiling.contains_dependences else ""
    rows = [
        ("D", tiling.deps, f"dependences {_vectors(tiling.vectors)}"),
        ("P", tiling.sides, f"sides {_vectors(tiling.edges)}; V_comp {tiling.volume} points"),
        ("H", tiling.h, "P inverted: rows are normal to the faces"),
        ("HD", tiling.hd, hd),
    ]
    cells = [
        [name, "[" + "; ".join(" ".join(map(str, row)) for row in matrix) + "]", text] for name, matrix, text in rows
    ]
    return _table(["", "rows", ""], cells)


def _verdict(found: BestTile) -> str:
    what = {"formula": "V_comm by the formula", "pairs": "pairs that leave", "values": "values sent"}[found.by]
    text = f"{what} {found.cost}"
    if found.is_free:
        return (
            f"{text}. The tile may be thin along the mapped dimension and wide across it; "
            "--ranks, with --space, requires a chain of tiles for each rank."
        )
    if found.is_proved:
        return f"{text}: no tile of this volume has less."
    bound = f"; none can have less than {found.bound}" if found.bound else ""
    return f"{text}: the least of the tiles tried{bound}."


def _volumes(facts: TileFacts, counts: Counts) -> str:
    tiling = facts.tiling
    rows = [["to all neighbours", str(tiling.formula()), str(counts.all.pairs), str(counts.all.values)]]
    for k, each in enumerate(counts.mapped):
        rows.append([f"tiles along {k} on one processor", str(tiling.formula(k)), str(each.pairs), str(each.values)])
    return _table(["V_comm", "formula", "exact", "values sent"], rows, 1)


def _messages(facts: TileFacts, counts: Counts) -> str:
    to = "to tile" if facts.mapped is None else "to processor"
    rows = [[str(each.to), str(len(each.points)), str(each.num_pairs)] for each in counts.messages]
    return _table([to, "values", "pairs"], rows, 1)


def _bounded(bounded: Bounded) -> str:
    tiles = bounded.tiles
    extents = " x ".join(map(str, tiles.extents))
    text = f"{tiles.num_tiles} tiles ({extents}), {tiles.num_whole} whole and {tiles.num_cut} cut by the bounds; "
    text += f"{bounded.processors} processors with the tiles along {bounded.mapped} on one."
    rows = [
        [name, str(list(schedule.pi)).replace(",", ""), str(schedule.steps), str(schedule.steps_from_1)]
        for name, schedule in (("not overlapping", bounded.non_overlapping), ("overlapping", bounded.overlapping))
    ]
    return text + "\n\n" + _table(["schedule", "Π", "time steps", "counted from 1"], rows, 2)


def _vectors(vectors: tuple[Vector, ...]) -> str:
    return ", ".join(map(str, vectors))


def _table(headers: list[str], rows: list[list[str]], left: int = 3) -> str:
    """Return a table whose first `left` columns are words and whose others are numbers."""
    from dovetail.report import render_table

    aligns: list[Literal["left", "right"]] = ["left" if k < left else "right" for k in range(len(headers))]
    return render_table(headers, rows, aligns, terminal=output.is_terminal(), width=output.width())
