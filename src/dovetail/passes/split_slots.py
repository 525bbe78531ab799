"""split_slots: split every slot into several, so that messages of one slot can be cut."""

from __future__ import annotations

from dataclasses import replace

from dovetail.core import ProgramError
from dovetail.ir import Kind, Program
from dovetail.ir.posts import Posts

_LENGTHS = ("offset", "count", "stride")


def split_slots(program: Program, pieces: int) -> Program:
    """Return the program with every slot split into `pieces` slots. Raises ProgramError for programs with kernels,
    which depend on the size of a slot.

    >>> from dovetail.ir import parse, to_text
    >>> before = parse('''
    ... program send ranks 2
    ... buffer x input 1,0
    ... buffer y output 0,1
    ... lane net net
    ... channel 0->1 0 depth 1
    ... post 1 y[0:1] = x@0[0:1]
    ... rank 0 lane net
    ...   send x[0:1] to 1
    ... rank 1 lane net
    ...   recv from 0 -> y[0:1]
    ... ''')
    >>> print(to_text(split_slots(before, 3)), end="")
    program send ranks 2
    buffer x input 3,0
    buffer y output 0,3
    lane net net
    channel 0->1 0 depth 1
    post 1 y[0:3] = x@0[0:3]
    rank 0 lane net
      send x[0:3] to 1
    rank 1 lane net
      recv from 0 -> y[0:3]
    """
    if (program.kind == Kind.compute).any():
        raise ProgramError(f"program '{program.name}' computes", hint="split programs that only move and reduce data")
    parts = {f"{side}_{part}": program.columns[f"{side}_{part}"] for side in ("read", "write") for part in _LENGTHS}
    buffers = tuple(b._replace(slots=tuple(n * pieces for n in b.slots)) for b in program.buffers)
    split = replace(program, buffers=buffers, posts=_split_posts(program, pieces))
    return split.with_columns(program.columns | {name: column * pieces for name, column in parts.items()})


def _split_posts(program: Program, pieces: int) -> Posts:
    posts = Posts.of(program.posts)
    names = [f"{side}_{part}" for side in ("post", "arg") for part in _LENGTHS]
    columns = posts.columns | {name: posts.columns[name] * pieces for name in names}
    return Posts(posts.buffers, posts.kernels, columns)
