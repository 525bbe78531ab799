"""Run by every rank, of an MPI or not: the collectives of dovetail on 1 to 4 ranks, held against NumPy."""

import json
import os
import sys
import threading
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
from any_ranks import UNDEFINED, WORLD, meet, overlaps

import dovetail as dc
from dovetail.call import build_engine as prepare
from dovetail.call import choice_for, use
from dovetail.call import selection_rules as rules
from dovetail.call.selection_rules import communicator
from dovetail.collective import algorithms_for
from dovetail.core import OperatorError, RunError
from dovetail.run import numpy_dtype
from dovetail.run.ranks import comm as run_comm
from dovetail.store.selection import Row, Selection

EVEN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_next")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNEVEN = ("all_gather_v", "reduce_scatter_v", "all_to_all_v")
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add}
HALVES = ("float16", "bfloat16")
DTYPES = ("float32", "float64", *HALVES, "int8", "uint64", "complex64")
LIBRARY = Selection({}, ())
MOST = 1 << 40
ALONE = ("mismatch", "late", "one_thread")  # what leaves MPI_COMM_WORLD as others cannot use it


def forced(comm, *names, low=0, high=MOST, **settings):
    """A table by which these algorithms serve their collectives."""
    kinds = {kind: name for name in names for kind in EVEN + ROOTED + UNEVEN if name in algorithms_for(kind)}
    rows = (Row(kind, comm.size, 1, low, high, name, **settings) for kind, name in kinds.items())
    return Selection({}, tuple(rows))


def data(rank, shape, dtype):
    """Small whole numbers, so that sums are exact in every order and dtype."""
    found = np.random.default_rng([rank, *shape]).integers(1, 3, shape)
    return found.astype(numpy_dtype(dtype) if dtype == "bfloat16" else dtype)


def reduced(parts, op):
    result = parts[0]
    for part in parts[1:]:
        result = OPS[op](result, part)
    if op == "avg":
        wide = np.float32 if result.dtype.itemsize == 2 else result.dtype.type
        result = (result.astype(wide) / wide(len(parts))).astype(result.dtype)
    return result


def same(found, expected):
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    width = f"u{found.dtype.itemsize}" if found.dtype.itemsize <= 8 else "u8"
    assert np.array_equal(found.view(width), expected.view(width)), (found, expected)


def even(comm, kind, rows, dtype, place=1):
    """One call of each form, against NumPy: two of a size at least, so that engines come in."""
    for op in ops_of(kind, dtype, place):
        even_by(comm, kind, rows, dtype, op)


def even_by(comm, kind, rows, dtype, op):
    n, rank = comm.size, comm.rank
    cut = kind in ("reduce_scatter", "all_to_all")
    parts = [data(k, (rows * n if cut else rows, 2), dtype) for k in range(n)]
    mine, own = parts[rank], slice(rank * rows, (rank + 1) * rows)
    if kind == "all_reduce":
        expected = reduced(parts, op)
        held = mine.copy()
        assert dc.all_reduce(held, comm, op) is held
        same(held, expected)
        out = np.empty_like(mine)
        assert dc.all_reduce(mine, comm, op, out) is out
        same(out, expected)
    elif kind == "all_gather":
        expected = np.concatenate(parts)
        same(dc.all_gather(mine, comm), expected)
        out = np.empty_like(expected)
        out[own] = mine
        same(dc.all_gather(out[own], comm, out), expected)
    elif kind == "reduce_scatter":
        expected = reduced(parts, op)[own]
        same(dc.reduce_scatter(mine, comm, op), expected)
        inside = mine.copy()
        same(dc.reduce_scatter(inside, comm, op, inside[own]), expected)
    elif kind == "all_to_all":
        expected = np.concatenate([part[own] for part in parts])
        same(dc.all_to_all(mine, comm), expected)
        inside = mine.copy()
        same(dc.all_to_all(inside, comm, inside), expected)
    else:
        out = data(99, (rows, 2), dtype)
        same(dc.all_to_next(mine, comm, out.copy()), parts[rank - 1] if rank else out)
        found = dc.all_to_next(mine, comm)
        assert found is None if rank == 0 else np.array_equal(found, parts[rank - 1])
    same(mine, data(rank, mine.shape, dtype))


def rooted(comm, kind, rows, dtype, root):
    n, rank = comm.size, comm.rank
    parts = [data(k, (rows * n if kind == "scatter" else rows,), dtype) for k in range(n)]
    mine = parts[rank].copy()
    if kind == "broadcast":
        for _ in range(2):
            mine = parts[rank].copy()
            assert dc.broadcast(mine, comm, root) is mine
            same(mine, parts[root])
        return
    for _ in range(2):
        if kind == "scatter":
            out = np.empty(rows, mine.dtype)
            dc.scatter(mine if rank == root else None, comm, root, out)
            same(out, parts[root][rank * rows : (rank + 1) * rows])
            continue
        out = np.empty_like(mine)
        found = dc.reduce(mine, comm, root, out=out) if kind == "reduce" else dc.gather(mine, comm, root)
        expected = reduced(parts, "sum") if kind == "reduce" else np.concatenate(parts)
        assert found is None if rank != root else not same(found, expected)
    same(mine, parts[rank])


def uneven(comm, kind, seed, dtype):
    n, rank = comm.size, comm.rank
    rng = np.random.default_rng([seed, n])
    counts, matrix = rng.integers(0, 4, n), rng.integers(0, 4, (n, n))
    if kind == "all_to_all_v":
        parts = [data(k, (int(matrix[k].sum()), 3), dtype) for k in range(n)]
        cuts = [np.split(part, np.cumsum(row)[:-1]) for part, row in zip(parts, matrix, strict=True)]
        expected = np.concatenate([cut[rank] for cut in cuts])
        same(dc.all_to_all_v(parts[rank], matrix, comm), expected)
        same(dc.all_to_all_v(parts[rank], matrix[rank].tolist(), comm, np.empty_like(expected)), expected)
    elif kind == "all_gather_v":
        parts = [data(k, (int(counts[k]), 3), dtype) for k in range(n)]
        for _ in range(2):
            same(dc.all_gather_v(parts[rank], counts, comm), np.concatenate(parts))
    else:
        parts = [data(k, (int(counts.sum()), 3), dtype) for k in range(n)]
        expected = np.split(reduced(parts, "sum"), np.cumsum(counts)[:-1])[rank]
        for _ in range(2):
            same(dc.reduce_scatter_v(parts[rank], counts, comm), expected)


def every_call(comm, kinds, rows, dtypes):
    """Calls of these kinds on these numbers of rows, and on the last of them for all dtypes but the first."""
    for kind, (place, dtype) in product(kinds, enumerate(dtypes)):
        for count in rows[-1:] if place else rows:
            if kind in EVEN:
                even(comm, kind, count, dtype, place)
            elif kind in ROOTED:
                rooted(comm, kind, count, dtype, (count + place) % comm.size)
            else:
                uneven(comm, kind, count, dtype)


def ops_of(kind, dtype, place):
    """All ops for the first dtype, the sum and another one for others."""
    if kind not in ("all_reduce", "reduce_scatter"):
        return ("sum",)
    if dtype[0] == "c":
        return "sum", "prod"
    others = ("prod", "min", "max", *(["avg"] if "float" in dtype else []))
    return ("sum", others[place % len(others)]) if place else ("sum", *others)


def test_library(comm):
    use(comm, LIBRARY)
    every_call(comm, EVEN + ROOTED + UNEVEN, (0, 1, 5), DTYPES)
    assert communicator(comm).bound.num_engines == 0


def test_algorithms(comm):
    """Each by itself; what the table does not name stays with the library."""
    for kind in EVEN + ROOTED + UNEVEN:
        for name in algorithms_for(kind) if comm.size in (2, 3) else ():
            if name == "sccl_122_all_gather":  # of 8 ranks
                continue
            use(comm, forced(comm, name))
            every_call(comm, (kind,), (1, 5), ("float32",))
            assert communicator(comm).bound.num_engines > 0, name


def test_dtypes(comm):
    """In engines: every dtype, op and size; complex numbers are the library's to reduce."""
    names = ("ring_all_reduce", "direct_all_gather", "ring_reduce_scatter", "direct_all_to_all", "direct_all_to_all_v")
    use(comm, forced(comm, *names, instances=2, slice_bytes=64))
    every_call(comm, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v"), (0, 7, 50), DTYPES)
    choice = choice_for(comm, "all_gather_v", 100)
    assert comm.size == 1 or choice.algorithm == "direct_all_gather"
    every_call(comm, ("all_gather_v",), (7,), ("float32", "complex128", "int16"))


def test_shared_memory(comm):
    """Every algorithm by scripts; whatever went back to the library would warn. The longest arrays take several
    tiles."""
    if comm.size == 1:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in EVEN + ROOTED + UNEVEN:
            for name in algorithms_for(kind) if comm.size in (2, 3) else ():
                if name == "sccl_122_all_gather":  # of 8 ranks
                    continue
                use(comm, forced(comm, name, transport="shared"))
                every_call(comm, (kind,), (1, 5, 40_000), ("float32",))
                assert communicator(comm).bound.num_engines > 0, name
        names = ("ring_all_reduce", "ring_all_gather", "ring_reduce_scatter", "direct_all_to_all")
        use(comm, forced(comm, *names, instances=2, transport="shared"))
        every_call(comm, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), (0, 7, 50), DTYPES)
        use(comm, forced(comm, *names[:3], channels=2, protocol="LL", transport="shared"))
        every_call(comm, ("all_reduce", "all_gather", "reduce_scatter"), (50,), ("float32",))


def test_fewer_elements_than_ranks(comm):
    for source, table in product(range(comm.size), (LIBRARY, forced(comm, "direct_all_to_all_v"))):
        use(comm, table)
        counts = np.zeros((comm.size, comm.size), int)
        counts[source, -1 - source] = 1
        for _ in range(2):
            found = dc.all_to_all_v(np.full(counts[comm.rank].sum(), 7.0), counts, comm)
            assert found.tolist() == [7.0] * counts[:, comm.rank].sum(), (source, found)


def test_odd_elements(comm):
    """What is only moved may be of any fixed size."""
    for table in (LIBRARY, forced(comm, "ring_all_gather")):
        use(comm, table)
        for dtype in ("S5", "M8[s]", "c16", "?", [("a", "i4"), ("b", "i2")]):
            mine = np.zeros(3, dtype)
            mine.view("u1")[...] = comm.rank + 1
            found = dc.all_gather(mine, comm)
            each = mine.nbytes
            assert found.dtype == mine.dtype
            assert [int(b) for b in found.view("u1")] == [k + 1 for k in range(comm.size) for _ in range(each)]


def test_in_place_on_some_ranks(comm):
    """Where the result lies is each rank's own business."""
    use(comm, LIBRARY)
    n, rank = comm.size, comm.rank
    for rows in (1, 20_000):
        parts = [data(k, (rows * n,), "float32") for k in range(n)]
        own = slice(rank * rows, (rank + 1) * rows)
        for kind, expected in (
            ("all_reduce", reduced(parts, "sum")),
            ("all_to_all", np.concatenate([part[own] for part in parts])),
        ):
            held = parts[rank].copy()
            out = np.empty_like(held) if rank else held
            same(getattr(dc, kind)(held, comm, out=out), expected)
        own_parts = [part[k * rows : (k + 1) * rows] for k, part in enumerate(parts)]
        gathered = np.empty(rows * n, "float32")
        gathered[own] = own_parts[rank]
        same(dc.all_gather(own_parts[rank] if rank else gathered[own], comm, gathered), np.concatenate(own_parts))


def test_sizes_switch(comm):
    rows = [(0, 64, "library"), (64, 256, "ring_all_reduce"), (256, 1024, "recursive_doubling_all_reduce")]
    use(comm, Selection({}, tuple(Row("all_reduce", comm.size, 1, a, b, name) for a, b, name in rows)))
    names = {8: None, 64: "ring", 255: "ring", 256: "recursive", 1023: "recursive", 1024: None}
    for num_bytes, name in names.items():
        choice = choice_for(comm, "all_reduce", num_bytes)
        assert choice.algorithm.startswith(name) if name else choice is None, (num_bytes, choice)
        before = communicator(comm).bound.num_engines
        for added in (0, name is not None, name is not None):  # the first call of a size is the library's
            held = np.full(num_bytes, comm.rank + 1, np.uint8)
            dc.all_reduce(held, comm)
            assert (held == comm.size * (comm.size + 1) // 2).all()
            assert communicator(comm).bound.num_engines == before + added


def test_rows_of_one_dtype(comm):
    """What was measured for one dtype serves no other."""
    use(comm, forced(comm, "ring_all_reduce", dtype="float32"))
    for dtype, engines in (("float64", 0), ("float32", 1), ("float16", 1)):
        even(comm, "all_reduce", 4, dtype)
        assert communicator(comm).bound.num_engines == engines, dtype
    assert choice_for(comm, "all_reduce", 8, "float64") is None
    assert choice_for(comm, "all_reduce", 8, "float32") is not None


def test_old_engines_go(comm):
    made = comm.Dup()
    use(made, forced(made, "all_pairs_all_reduce"))
    bound = communicator(made).bound
    bound.keep(3, 100)
    for count, kept in ((1, 1), (2, 2), (3, 3), (1, 3), (4, 3), (1, 3), (2, 3), (9, 3), (20, 1), (1, 1)):
        for _ in range(2):  # a size that comes once is not worth an engine
            held = np.full(count, comm.rank + 1.0)
            dc.all_reduce(held, made)
            assert (held == comm.size * (comm.size + 1) / 2).all()
        assert bound.num_engines == kept, (count, bound.num_engines)
    made.Free()


def test_choices_that_cannot_be(comm):
    """Told once on rank 0; the library does it."""
    table = Selection({}, (Row("all_reduce", comm.size, 1, 0, MOST, "ring_all_gather"),))
    use(comm, table)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for _ in range(3):
            even(comm, "all_reduce", 5, "float32")
    assert len(reported) == (comm.rank == 0), [str(w.message) for w in reported]
    assert not reported or "ring_all_gather is no algorithm for all_reduce" in str(reported[0].message)


def test_refusals(comm):
    n, a = comm.size, np.ones(2 * comm.size)
    frozen = a.copy()
    frozen.flags.writeable = False
    null = comm.Dup()
    null.Free()
    cases = {
        "takes NumPy arrays": lambda: dc.all_reduce([1.0], comm),
        "C-contiguous": lambda: dc.all_reduce(np.ones((3, 3)).T, comm),
        "knows no op 'xor'": lambda: dc.all_reduce(a, comm, "xor"),
        "cannot reduce bool": lambda: dc.all_reduce(np.ones(2, bool), comm),
        "no average of int64": lambda: dc.all_reduce(np.ones(2, np.int64), comm, "avg"),
        "complex64 has no max": lambda: dc.all_reduce(np.ones(2, "c8"), comm, "max"),
        "cannot move object": lambda: dc.broadcast(np.array([None]), comm),
        "cannot reduce >f8": lambda: dc.all_reduce(np.ones(2, ">f8"), comm),
        "read-only": lambda: dc.all_reduce(frozen, comm),
        "from float64 to float32": lambda: dc.all_reduce(a, comm, out=np.ones(len(a), "f4")),
        f"from {2 * n} elements to {3 * n}": lambda: dc.all_reduce(a, comm, out=np.ones(3 * n)),
        "an axis 0": lambda: dc.all_gather(np.array(1.0), comm),
        f"no root {n}": lambda: dc.broadcast(a, comm, n),
        "no root -1": lambda: dc.reduce(a, comm, -1),
        "no root 'x'": lambda: dc.gather(a, comm, "x"),
        f"counts of shape ({n},)": lambda: dc.all_gather_v(a, [1] * (n + 1), comm),
        f"counts of shape ({n}, {n})": lambda: dc.all_to_all_v(a, np.ones((n, n + 1), int), comm),
        "not negative": lambda: dc.reduce_scatter_v(a, [-1] * n, comm),
        "and not negative": lambda: dc.all_to_all_v(a, [-1] * n, comm),
        "its counts ask for": lambda: dc.all_gather_v(a, [1] * n, comm),
        "has a result of": lambda: dc.all_gather_v(np.ones(1), [1] * n, comm, np.ones(n + 1)),
        "all_gather_v takes NumPy arrays": lambda: dc.all_gather_v(np.ones(1), [1] * n, comm, [0.0] * n),
        "all_to_next takes NumPy arrays": lambda: dc.all_to_next(None, comm),
        "reduce takes NumPy arrays": lambda: dc.reduce(None, comm),
        "object, shape ()": lambda: dc.reduce_scatter_v(a, None, comm),
        "object, shape (2,)": lambda: dc.all_to_all_v(a, [[1], [1, 2]], comm),
        "no communicator": lambda: dc.all_reduce(a, n),
        "is null": lambda: dc.all_reduce(a, null),
        "no collective 'sum'": lambda: choice_for(comm, "sum", 8),
        "then a collective's name": lambda: choice_for("all_reduce", np.zeros(2), comm),
    }
    if n > 1:
        cases["into"] = lambda: dc.reduce_scatter(np.ones(n + 1), comm, out=np.ones(1))
        reported = f"{'rank 0: ' if comm.rank else ''}all_to_all_v needs counts of shape ({n},), whole and not negative"
        cases[reported] = lambda: dc.all_to_all_v(a, [1 if comm.rank else -1] * n, comm)
        cases["an `out` on rank"] = lambda: dc.scatter(None, comm, (comm.rank + 1) % n)
    for words, call in cases.items():
        assert words in refusal(call), (words, refusal(call))
    use(comm, LIBRARY)
    every_call(comm, ("all_reduce",), (3,), ("float32",))


def test_two_at_once(comm):
    """Two communicators with other tables, in turn and from two threads, in another order on every other rank."""
    one, two = comm.Dup(), comm.Dup()
    use(one, forced(comm, "ring_all_reduce"))
    for count in (1, 100, 7):
        for each in (one, two):
            even(each, "all_reduce", count, "int32")
    if overlaps():
        order = [one, two] if comm.rank % 2 else [two, one]
        threads = [threading.Thread(target=later, args=(each, 0.05 * i)) for i, each in enumerate(order)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread holds up another"
    one.Free(), two.Free()


def later(comm, delay_s):
    time.sleep(delay_s)
    held = np.ones(3)
    dc.all_reduce(held, comm)
    assert held.tolist() == [comm.size] * 3


def test_freed_communicators(comm):
    begun = len(run_comm._known)
    for _ in range(5):
        made = comm.Dup()
        use(made, forced(made, "ring_all_reduce"))
        even(made, "all_reduce", 3, "float32")
        bound = communicator(made).bound
        made.Free()
        assert bound.freed
        assert bound.num_engines == 0
    assert len(run_comm._known) <= begun + 1


def test_arguments_compared(comm):
    """With the switch set, every rank names the ranks that differ, and the communicator can be used again."""
    os.environ["DOVETAIL_CHECK_CALLS"] = "1"
    made = comm.Dup()
    try:
        last = comm.rank == comm.size - 1
        cases = {
            "elements 4 on rank 0, 5": lambda: dc.all_reduce(np.ones(5 if last else 4), made),
            "dtype float64 on rank 0, float32": lambda: dc.all_reduce(np.ones(4, "f4" if last else "f8"), made),
            "op sum on rank 0, max": lambda: dc.all_reduce(np.ones(4), made, "max" if last else "sum"),
            "root 0 on rank 0, 1": lambda: dc.broadcast(np.ones(4), made, 1 if last else 0),
            "collective all_reduce on rank 0, broadcast": lambda: (dc.broadcast if last else dc.all_reduce)(
                np.ones(4), made
            ),
            f"counts on rank {comm.size - 1} are not": lambda: dc.all_gather_v(
                np.ones(4), [3 if last else 4] + [4] * (comm.size - 1), made
            ),
            f"counts on rank {comm.size - 1}": lambda: dc.all_to_all_v(
                np.ones(comm.size), np.ones((comm.size, comm.size)[not last :], int), made
            ),
            "refuses its arguments" if not last else "NumPy": lambda: dc.all_reduce([1] if last else np.ones(4), made),
        }
        for words, call in cases.items() if comm.size > 1 else ():
            said = refusal(call)
            assert words in said, (words, said)
        even(made, "all_reduce", 3, "float32")
    finally:
        del os.environ["DOVETAIL_CHECK_CALLS"]
        made.Free()


def test_table_is_found(comm):
    """A communicator begins with the selection file of rank 0; all ranks warn of a broken one, and go without it."""
    path = os.environ["DOVETAIL_SELECTION"]
    if WORLD.rank == 0:
        forced(comm, "ring_all_reduce", low=16).save(path)
    made = comm.Dup()
    assert choice_for(made, "all_reduce", 8) is None
    assert choice_for(made, "all_reduce", 16).algorithm == "ring_all_reduce"
    even(made, "all_reduce", 3, "float64")
    made.Free()
    for damage, words in DAMAGES:
        if WORLD.rank == 0:
            document = forced(comm, "ring_all_reduce", low=16).to_json()
            damage(document)
            Path(path).write_text(json.dumps(document), encoding="utf-8")
        made = comm.Dup()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            even(made, "all_reduce", 3, "float64")
        assert choice_for(made, "all_reduce", 16) is None
        assert [path in str(w.message) and words in str(w.message) for w in seen] == [True], [str(w) for w in seen]
        made.Free()
    if WORLD.rank == 0:
        os.remove(path)


# What is done to a table, and words of the warning.
DAMAGES = (
    (dict.clear, "schema"),
    (lambda table: table.update(facts=[{}]), "`facts` is an object"),
    (lambda table: table["rows"][0].update(dtype="bool"), "row 0: no dtype 'bool'"),
    (lambda table: table["rows"][0].update(algorithm={}), "row 0: no algorithm {}"),
    (lambda table: table["rows"][0].update(protocol=[]), "row 0: no protocol []"),
    (lambda table: table["rows"].append(7), "row 1"),
)


def test_what_is_no_selection(comm):
    """Whatever rank 0 gives: every rank says that it is none, and none waits."""

    class Broken(Selection):
        def to_json(self):
            raise RuntimeError("cannot be written")

    for given, words in (("table.json", "no Selection, but str"), (Broken({}, ()), "cannot be written")):
        said = refusal(lambda given=given: use(comm, None if comm.rank else given))
        assert words in said, said
    even(comm, "all_reduce", 3, "float64")


def refusal(call, kind=OperatorError):
    """What the error said."""
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing"


def mismatch(comm):
    """Unchecked sizes that differ: an engine's message does not fit, every rank raises, the communicator is lost."""
    use(comm, forced(comm, "recursive_doubling_all_reduce"))
    for count in (5, 5, 6, 6):
        dc.all_reduce(np.ones(count), comm)
    for words in ("DOVETAIL_CHECK_CALLS=1", "an earlier call failed"):
        said = refusal(lambda: dc.all_reduce(np.ones(5 + comm.rank), comm), RunError)
        assert words in said, said


def late(comm):
    """A rank that gave up has its memory to itself: what another sends after all does not land there."""
    prepare.STALL_S = 2.0
    use(comm, forced(comm, "ring_all_gather"))
    mine, out = np.full(1000, comm.rank), np.zeros(2000, int)
    for _ in range(3):
        comm.Barrier()
        dc.all_gather(mine, comm, out)
    if comm.rank:
        comm.recv(source=0)
        refusal(lambda: dc.all_gather(mine, comm, out), RunError)  # or none, where the library kept rank 0's message
        comm.send(None, 0)
    else:
        said = refusal(lambda: dc.all_gather(mine, comm, out), RunError)
        assert "stalled" in said, said
        out[:] = 7
        comm.send(None, 1)
        comm.recv(source=1)
        assert (out == 7).all(), out


def one_thread(comm):
    """Where MPI was started for one thread, another is refused, and the first goes on."""
    assert not overlaps()
    reported = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: reported.append(refusal(lambda: dc.all_reduce(np.ones(3), comm), RunError))
        )
        thread.start()
        thread.join()
        even(comm, "all_reduce", 3, "float64")
    assert len(reported) == 2, reported
    assert all("main thread only" in text for text in reported), reported


def plant(fault):
    """Break the face in one place; the tests must see it."""
    if fault == "result":  # goes to a scratch buffer, not to the caller
        homes = prepare._homes
        prepare._homes = lambda program, arrays, has_result: homes(program, arrays, False)
    elif fault == "threshold":
        rules_of = rules.rules_of
        rules.rules_of = lambda *asked: {k: [(a + 1, c) for a, c in steps] for k, steps in rules_of(*asked).items()}
    elif fault == "root":
        program = prepare.program_of
        prepare.program_of = lambda kind, choice, ranks, nodes, root: program(kind, choice, ranks, nodes, 0)
    elif fault == "sizes":
        sizes = prepare._sizes
        prepare._sizes = lambda program, asked: sizes(program, asked._replace(elements=asked.elements - 1))


def main(what="all", *names):
    if what in ALONE:
        globals()[what](WORLD)
    elif what != "all":
        plant(what)
    tests = [value for name, value in globals().items() if name.startswith("test_") and (not names or name in names)]
    for size in range(1, WORLD.size + 1) if what not in ALONE else ():
        member = WORLD.rank < size
        comm = WORLD.Split(0 if member else UNDEFINED)
        for test in tests if member else ():
            test(comm)
        if member:
            comm.Free()
        meet()
    if WORLD.rank == 0:
        print("all the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
