"""bounds: every op has the regions, channels and call that its kind needs, all inside their tables and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir.collectives import COLLECTIVES, OP_COLLECTIVES, Traits
from dovetail.ir.op_lists import message_slots, name_op, part_slots, places_text, rank_read, rank_written
from dovetail.ir.posts import Posts
from dovetail.ir.program import MAX_SLOTS, Program
from dovetail.ir.proof.certificate import Fault
from dovetail.ir.proof.terms import Modes, each, leaves, modes_of, num_terms, own_slots, slots_needed
from dovetail.ir.types import Kind, Mode, Op, Post, Region, Role, Term

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Shape(NamedTuple):
    """How many regions ops of a kind read and write, and whether they receive and send."""

    reads: int
    writes: int
    receives: bool = False
    sends: bool = False


SHAPES = {
    Kind.nop: Shape(0, 0),
    Kind.copy: Shape(1, 1),
    Kind.reduce: Shape(1, 1),
    Kind.send: Shape(1, 0, sends=True),
    Kind.recv: Shape(0, 1, receives=True),
    Kind.recv_reduce: Shape(1, 1, receives=True),
    Kind.recv_copy_send: Shape(0, 1, receives=True, sends=True),
    Kind.recv_reduce_send: Shape(1, 0, receives=True, sends=True),
    Kind.recv_reduce_copy_send: Shape(1, 1, receives=True, sends=True),
    Kind.put: Shape(1, 1, sends=True),
    Kind.signal: Shape(0, 0, sends=True),
    Kind.wait: Shape(0, 0, receives=True),
    Kind.get: Shape(1, 1, receives=True),
}


def bounds_fault(program: Program) -> Fault | None:
    """Return the fault of the first invalid op by row, else of the first invalid post-condition; None if all fit."""
    for op in program.ops():
        fault = op_fault(program, op)
        if fault:
            return fault
    return posts_fault(program)


def op_fault(program: Program, op: Op, folded: bool = False) -> Fault | None:
    """Return what is wrong with an op in isolation, apart from the ops that it communicates with.

    `folded`: the program is one rank's part of a folded program, whose channels seem to lead back to their rank.
    """
    own = (_channels_fault,) if folded else (_channels_fault, _loop_fault)
    for check in (*own, _call_fault, _shape_fault, _range_fault, _counts_fault, _deps_fault):
        text = check(program, op)
        if text:
            return Fault(f"{name_op(program, op.index)}: {text}", (op.index,))
    return None


def _channels_fault(program: Program, op: Op) -> str | None:
    shape = SHAPES.get(op.kind, Shape(0, 0))
    for row, wanted, verb in ((op.chan_in, shape.receives, "receives on"), (op.chan_out, shape.sends, "sends on")):
        if (row >= 0) != wanted:
            return (
                f"a {op.kind.name} {verb} a channel, and none is named" if wanted else f"no {op.kind.name} {verb} one"
            )
        if row < 0:
            continue
        channel = program.channels[row]
        end = channel.src if verb == "sends on" else channel.dst
        if end != op.rank:
            return f"it {verb} channel {channel.src}->{channel.dst}, which is not its own"
    return None


def _loop_fault(program: Program, op: Op) -> str | None:
    for channel in (program.channels[row] for row in (op.chan_in, op.chan_out) if row >= 0):
        if channel.src == channel.dst:
            return f"channel {channel.src}->{channel.dst} leads back to its own rank; a copy does that"
    return None


def _call_fault(program: Program, op: Op) -> str | None:
    if op.kind not in (Kind.compute, Kind.collective):
        return None if op.call == -1 else f"a {op.kind.name} calls nothing"
    if op.call < 0:
        return f"a {op.kind.name} names no {'kernel' if op.kind == Kind.compute else 'collective'}"
    if op.kind == Kind.collective:
        kind, group = program.collectives[op.call]
        if kind not in OP_COLLECTIVES:
            return f"unknown collective '{kind}'; known are {', '.join(OP_COLLECTIVES)}"
        if op.rank not in group:
            return f"rank {op.rank} is not in the group {' '.join(map(str, group))}"
    return None


def _shape_fault(program: Program, op: Op) -> str | None:
    found = (len(op.reads), len(op.writes))
    if op.kind == Kind.compute:
        kernel = program.kernels[op.call]
        wanted = f"{len(kernel.modes)} regions to read" if found[0] != len(kernel.modes) else None
    elif op.kind == Kind.collective:
        wanted = _collective_shape(program, op)
    else:
        shape = SHAPES[op.kind]
        wanted = f"{shape.reads} to read and {shape.writes} to write" if found != shape[:2] else None
    return f"it needs {wanted}, and has {found[0]} to read and {found[1]} to write" if wanted else None


def _collective_shape(program: Program, op: Op) -> str | None:
    kind, group = program.collectives[op.call]
    found, members, traits = (len(op.reads), len(op.writes)), len(group), COLLECTIVES[kind]
    if traits.exchanges and found != (1, 1):
        wanted = f"1 region to read and 1 to write, or {members} of each, one for each member"
        return None if found == (members, members) else wanted
    if not traits.from_root:
        return None if found == (1, 1) else "1 region to read and 1 to write"
    if op.rank == group[0]:
        return None if found in ((1, 0), (1, 1)) else "1 region to read and at most 1 to write, as the root"
    return None if found in ((0, 1), (1, 1)) else "1 region to write and at most 1 to read"


def _range_fault(program: Program, op: Op) -> str | None:
    source, target = rank_read(program, op), rank_written(program, op)
    for rank, verb, regions in ((source, "reads", op.reads), (target, "writes", op.writes)):
        for region in regions:
            text = region_fault(program, rank, region)
            if text:
                return f"it {verb} {text}"
    return None


def region_fault(program: Program, rank: int, region: Region) -> str | None:
    """Return why a region does not lie inside its buffer on `rank`; None if it does."""
    size = program.slots_of(region.buffer, rank)
    if min(region.offset, region.count, region.stride, region.blocks) < 0:
        return f"{region}: offset, count, stride and blocks are not negative"
    if region.num_slots > MAX_SLOTS:
        return f"{region}: more slots than any buffer may have"
    end = region.offset + region.count + region.stride * max(region.blocks - 1, 0)
    return f"{region}, but buffer {region.buffer} has {size} slots on rank {rank}" if end > size else None


def _counts_fault(program: Program, op: Op) -> str | None:
    writes = [region.num_slots for region in op.writes]
    reads = [region.num_slots for region in op.reads]
    if op.kind == Kind.collective:
        return None  # `collective_fault` checks the sizes of all members together
    modes = program.kernels[op.call].modes if op.kind == Kind.compute else each(len(reads))
    same = writes + [count for count, mode in zip(reads, modes, strict=True) if mode == "each"]
    if len(set(same)) > 1:
        return f"it reads {' and '.join(map(str, op.reads))}, writes {' and '.join(map(str, op.writes))}: sizes differ"
    return _contraction_fault(modes, reads, [str(region) for region in op.reads], same[0] if same else 1)


def _contraction_fault(modes: Sequence[Mode], sizes: Sequence[int], names: Sequence[str], slots: int) -> str | None:
    """Return what is wrong with the sizes of `sum` and `each_sum` operands for a result of `slots` slots, or None."""
    terms = num_terms(modes, sizes, slots)
    for mode, size, name in zip(modes, sizes, names, strict=True):
        needed = slots_needed(mode, size, slots, terms)
        if needed != size:
            of = f", {slots} x {terms}," if mode == "each_sum" else ""
            return f"its operand {name} of mode {mode} has {size} slots, where {needed}{of} are summed"
    return f"it sums over zero slots for a result of {slots} slots" if terms == 0 and slots > 0 else None


def _deps_fault(program: Program, op: Op) -> str | None:
    for row in op.after:
        if int(program.columns["rank"][row]) != op.rank:
            return f"it waits for op {row}, which is on another rank; ranks wait for one another by messages or signals"
    return None


def posts_fault(program: Program) -> Fault | None:
    """Return the fault of the first post-condition that names what does not exist, or has sizes that do not fit."""
    modes: dict[str, tuple[Mode, ...]] = {}
    for kernel in program.kernels:
        if modes.setdefault(kernel.name, kernel.modes) != kernel.modes:
            return Fault(f"kernel '{kernel.name}' is declared with different modes")
    roles, posts = {buffer.name: buffer.role for buffer in program.buffers}, Posts.of(program.posts)
    for number in np.flatnonzero(~_are_simple(program, posts)).tolist():
        text = _post_fault(program, posts[number], modes, roles)
        if text:
            post = posts[number]
            ranks = f"rank{'s' * (len(post.ranks) > 1)} {', '.join(map(str, post.ranks[:8]))}"
            more = f" and {len(post.ranks) - 8} more" if len(post.ranks) > 8 else ""
            return Fault(f"post-condition {number}, on {post.region} of {ranks}{more}: {text}")
    return None


def _are_simple(program: Program, posts: Posts) -> Flags:
    """Return which posts sum contiguous slots of inputs, and are valid: nearly all, and they are checked at once."""
    col, number, simple = posts.columns, np.arange(len(posts)), np.ones(len(posts), dtype=bool)
    terms, ranks = (np.repeat(number, np.diff(col[f"post_{part}_start"])) for part in ("term", "rank"))
    args = np.repeat(terms, np.diff(col["term_arg_start"]))
    roles = {buffer.name: buffer.role for buffer in program.buffers}
    is_input = np.array([roles[name] == "input" for name in posts.buffers], dtype=bool)
    simple[ranks[~_are_runs(program, posts, "post", ranks, col["post_rank"])]] = False
    simple[args[~_are_runs(program, posts, "arg", np.arange(len(args)), col["arg_rank"])]] = False
    simple[args[(col["arg_count"] != col["post_count"][args]) | ~is_input[col["arg_buffer"]]]] = False
    simple[terms[(col["term_kernel"] >= 0) | (np.diff(col["term_arg_start"]) != 1)]] = False
    return simple


def _are_runs(program: Program, posts: Posts, side: str, rows: Ints, ranks: Ints) -> Flags:
    """Return which of the regions in these rows are one run of slots that exists on the rank beside it."""
    slots = {buffer.name: buffer.slots for buffer in program.buffers}
    sizes = np.array([slots[name] for name in posts.buffers], dtype=np.int64).reshape(-1, program.num_ranks)
    parts = ("buffer", "offset", "count", "stride", "blocks")
    buffer, start, count, stride, blocks = (posts.columns[f"{side}_{part}"][rows] for part in parts)
    held = sizes[buffer, ranks]
    good: Flags = (
        (blocks == 1) & (stride == 0) & (start >= 0) & (start <= held) & (count >= 0) & (count <= held - start)
    )
    return good


def _post_fault(program: Program, post: Post, modes: Modes, roles: dict[str, Role]) -> str | None:
    for rank in post.ranks:
        text = region_fault(program, rank, post.region)
        if text:
            return text
    for term in post.terms:
        for rank, region in leaves(term):
            if roles[region.buffer] != "input":
                return f"'{region.buffer}' is not an input; terms are of the inputs' initial values"
            text = region_fault(program, rank, region)
            if text:
                return text
        if term.kernel is None and len(term.args) != 1:
            return f"a term without a kernel has 1 operand, not {len(term.args)}"
        text = _shape_of_term_fault(term, modes) or _term_fault(term, post.region.num_slots, str(post.region), modes)
        if text:
            return text
    return None


def _shape_of_term_fault(term: Term, modes: Modes) -> str | None:
    """Return why a term has an unknown kernel or a wrong number of operands (or a nested term has); None if valid."""
    if term.kernel is not None and term.kernel not in modes:
        return f"no kernel '{term.kernel}'"
    if len(term.args) != len(modes_of(term, modes)):
        return f"a term of {term.kernel} has {len(modes_of(term, modes))} operands, not {len(term.args)}"
    for arg in term.args:
        if not isinstance(arg, Term):
            continue
        if arg.kernel is None and (term.kernel is None or len(arg.args) < 2):
            return "a sum that is an operand of a kernel has two operands or more: regions, or terms with kernels"
        text = _shape_of_term_fault(arg, modes)
        if text:
            return text
    return None


def _term_fault(term: Term, slots: int, of: str, modes: Modes) -> str | None:
    """Return which operand's size does not fit a term of `slots` slots; None if all fit. `of`: names the result."""
    wanted, sizes = modes_of(term, modes), [own_slots(arg, modes) for arg in term.args]
    names = [f"{arg.kernel or 'a sum'}(...)" if isinstance(arg, Term) else str(arg[1]) for arg in term.args]
    terms = num_terms(wanted, sizes, slots)
    needed = [slots_needed(mode, size, slots, terms) for mode, size in zip(wanted, sizes, strict=True)]
    for mode, arg, name, size in zip(wanted, term.args, names, needed, strict=True):
        if mode == "each" and not isinstance(arg, Term) and arg[1].num_slots != size:
            return f"{name} and {of} differ in size"
        if size > MAX_SLOTS:
            return f"{name}: more slots than any buffer may have"
    found = [size if isinstance(arg, Term) else own for arg, own, size in zip(term.args, sizes, needed, strict=True)]
    text = _contraction_fault(wanted, found, names, slots)
    if text:
        return text
    nested = ((arg, name, size) for arg, name, size in zip(term.args, names, needed, strict=True))
    faults = (_term_fault(arg, size, name, modes) for arg, name, size in nested if isinstance(arg, Term))
    return next(filter(None, faults), None)


def message_fault(program: Program, sender: Op, receiver: Op) -> Fault | None:
    """Return the fault of a message whose sender and receiver disagree on its size; None if they agree."""
    sent, taken = message_slots(sender), message_slots(receiver)
    if sent == taken:
        return None
    what = f"{name_op(program, receiver.index)}: it takes {taken} slots, but the message that reaches it has {sent}"
    rows = (receiver.index, sender.index)
    hint = f"make both ends agree, in order and in size: op {sender.index} sends it"
    return Fault(what, rows[::-1], places_text(program, rows), hint, blamed=rows)


def collective_fault(program: Program, members: Sequence[Op]) -> Fault | None:
    """Return the fault of a collective call whose members' sizes do not fit together; None if they do.

    `members`: the members' ops, in the order of the group.
    """
    kind, group = program.collectives[members[0].call]
    if _parts_fit(members) if COLLECTIVES[kind].exchanges else _sizes_fit(COLLECTIVES[kind], members):
        return None
    sizes = ", ".join(
        f"rank {rank} {_sizes_text(op.reads)} -> {_sizes_text(op.writes)}"
        for rank, op in zip(group, members, strict=True)
    )
    rows = tuple(op.index for op in members)
    return Fault(f"{name_op(program, rows[0])}: the members of this {kind} disagree on sizes", rows, found=sizes)


def _sizes_text(regions: Sequence[Region]) -> str:
    return "+".join(str(region.num_slots) for region in regions) or "None"


def _parts_fit(members: Sequence[Op]) -> bool:
    """Whether each member of an all_to_all sends to each other member as much as that one receives from it."""
    n = len(members)
    if any(len(side) == 1 and side[0].num_slots % n for op in members for side in (op.reads, op.writes)):
        return False
    sent = [part_slots(op.reads, n) for op in members]
    taken = [part_slots(op.writes, n) for op in members]
    return all(sent[i][j] == taken[j][i] for i in range(n) for j in range(n))


def _sizes_fit(traits: Traits, members: Sequence[Op]) -> bool:
    reads = [op.reads[0].num_slots if op.reads else None for op in members]
    writes = [op.writes[0].num_slots if op.writes else None for op in members]
    if traits.from_root:
        return all(size in (reads[0], None) for size in [*reads, *writes])
    counts_in, counts_out = [size or 0 for size in reads], [size or 0 for size in writes]
    if traits.joined:
        return all(size == sum(counts_in) for size in counts_out)
    if traits.cut:
        return all(size == sum(counts_out) for size in counts_in)
    return len({*counts_in, *counts_out}) == 1
