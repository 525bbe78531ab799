"""What a nest reads is taken when it is read, and what recording once cannot see is refused with its line."""

import math
import signal
from itertools import count

import numpy as np
import pytest

from dovetail import operator_of
from dovetail.core import OperatorError
from dovetail.loops import array, loop, maximum, minimum, nest, where

compiled = pytest.mark.needs("compiler")


def ways(made, *arrays, **parameters):
    """Each array that the compiled nest, NumPy and the function itself return."""
    for way in (made, made.numpy, made.reference):
        found = way(*arrays, **parameters)
        yield found if isinstance(found, tuple) else (found,)


def assert_same(made, *arrays, **parameters):
    c, by_numpy, reference = ways(made, *arrays, **parameters)
    for a, b, wanted in zip(c, by_numpy, reference, strict=True):
        np.testing.assert_array_equal(a, wanted, strict=True)
        np.testing.assert_array_equal(b, wanted, strict=True)
        if wanted.dtype.kind == "f":
            zeros = wanted == 0
            assert (np.signbit(a) == np.signbit(wanted))[zeros].all()
            assert (np.signbit(b) == np.signbit(wanted))[zeros].all()


@nest(u=array("n", "m"), change=array("n", "m"), w=array("n"))
def temporaries(u, change, w, steps):
    n, m = u.shape
    for _ in loop(steps):
        for i in loop(1, n - 1):
            first = w[0]
            for j in loop(1, m - 1):
                old = u[i, j]
                u[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])
                change[i, j] = u[i, j] - old
                w[0] = w[0] + first  # first is of before the loop over j
        for i in loop(n):
            for j in loop(m):
                u[i, j], change[i, j] = change[i, j], u[i, j]
        for i in loop(n):
            before, same = w[i], 2 * w[i]
            w[i] = w[i] * 0.5
            for j in loop(m):
                u[i, j] = u[i, j] - before + same * w[i]


@compiled
def test_values_are_taken_when_they_are_read():
    rng = np.random.default_rng(0)
    arrays = rng.random((6, 7)), rng.random((6, 7)), rng.random(6)
    for steps in (0, 3):
        assert_same(temporaries, *arrays, steps=steps)
    assert_same(temporaries, rng.random((3, 1)), rng.random((3, 1)), rng.random(3), steps=2)


def test_temporaries_run_serially_only():
    from dovetail.tiling.nest_code import nest_code

    for way in (temporaries.dependences, lambda: operator_of(temporaries), lambda: nest_code(temporaries, {})):
        with pytest.raises(OperatorError, match="after a statement has overwritten it") as caught:
            way()
        assert "test_values.py" in str(caught.value)


def test_reads_that_no_write_changes_need_no_temporary():
    @nest(u=array("n"), v=array("n", time=True, boundary="fixed"))
    def free(u, v, steps):
        for t in loop(steps):
            for i in loop(1, u.shape[0] - 1):
                left, old = u[i - 1], v[t, i]
                u[i] = left + u[i + 1]
                v[t + 1, i] = old + left + u[0]

    assert "t0_" not in str(free)


def test_levels_read_before_their_step_writes_them():
    with pytest.raises(OperatorError, match="read before its step writes it"):

        @nest(u=array("n", time=True, boundary="fixed"), v=array("n"))
        def early(u, v, steps):
            for t in loop(steps):
                for i in loop(u.shape[0]):
                    old = u[t + 1, i]
                    u[t + 1, i] = u[t, i]
                    v[i] = old


def running(u, v):
    s = 0
    for i in loop(u.shape[0]):
        s = s + u[i]
        u[i] = s


def counted(u, v):
    k = 0
    for i in loop(u.shape[0]):
        k = k + 1
        u[i] = 1 if k < 10 else 2


def counted_for_later(u, v):
    k = 0
    for i in loop(u.shape[0]):
        k += 1
        u[i] = v[i]
    v[0] = k


def enumerated(u, v):
    for k, i in enumerate(loop(u.shape[0])):
        u[i] = 1 if k < 10 else 2


def zipped(u, v):
    for i, j in zip(loop(u.shape[0]), loop(u.shape[0]), strict=False):
        u[i] = v[j]


def appended(u, v):
    seen = []
    for i in loop(u.shape[0]):
        seen.append(1)
        u[i] = v[i]
    v[0] = len(seen)


def kept_index(u, v):
    first = []
    for i in loop(u.shape[0]):
        first.append(i)
        u[first[0]] = v[i]


def previous(u, v):
    last = v[0]
    for i in loop(u.shape[0]):
        u[i] = last
        last = v[i]


def once(u, v):
    first = None
    for i in loop(u.shape[0]):
        first = v[i] if first is None else first
        u[i] = first


def first_only(u, v):
    is_first = True
    for i in loop(u.shape[0]):
        if is_first:
            u[0] = 7
        is_first = False
        v[i] = 1


def nonlocal_count(u, v):
    k = 0

    def one(i):
        nonlocal k
        k += 1
        u[i] = 1 if k < 10 else 2

    for i in loop(u.shape[0]):
        one(i)


def iterator(u, v):
    numbers = count()
    for i in loop(u.shape[0]):
        u[i] = next(numbers)


def summed(u, v):
    v[0] = sum(u[i] for i in loop(u.shape[0]))


def after_its_loop(u, v):
    for i in loop(u.shape[0]):
        a = u[i] * 2
        u[i] = a
    for i in loop(u.shape[0]):
        v[i] = a


def index_after_its_loop(u, v):
    for i in loop(u.shape[0]):
        k = i
        u[i] = v[i]
    for i in loop(u.shape[0]):
        v[k] = u[i]


def broken(u, v):
    for i in loop(u.shape[0]):
        u[i] = v[i]
        break


def returned(u, v):
    for i in loop(u.shape[0]):
        u[i] = v[i]
        return


def advanced(u, v):
    i = next(iter(loop(u.shape[0])))
    u[i] = v[i]


def backwards(u, v):
    for i in reversed(loop(u.shape[0])):
        u[i] = v[i]


def listed(u, v):
    for _ in range(len(list(loop(u.shape[0])))):
        u[0] = u[0] + 1


def whole(u, v):
    v[0] = sum(u)


def chained(u, v):
    u[0][1] = 2


def rooted(u, v):
    for i in loop(u.shape[0]):
        u[i] = math.sqrt(v[i])


def bounded_by_data(u, v):
    for i in loop(u[0]):
        u[i] = v[i]


def doubled(u, v):
    total = v[0]
    for _ in range(100):
        total = total + total
    u[0] = total


def powered(u, v):
    for i in loop(u.shape[0]):
        u[i] = v[i] ** 2


def misspelt(u, v):
    u[0] = v.shape[1]


REFUSED = {
    running: "is used after the iteration that read it",
    counted: "'k' changes from one iteration to the next",
    counted_for_later: "'k' changes",
    enumerated: "'k' changes",
    zipped: "side by side",
    appended: "'seen' changes",
    kept_index: "index i outside its loop",
    previous: "is used after the iteration",
    once: "is used after the iteration",
    first_only: "a statement changes",
    nonlocal_count: "'k' changes",
    iterator: "a statement changes",
    summed: "a loop writes nothing",
    after_its_loop: "is used after the iteration",
    index_after_its_loop: "index i outside its loop",
    broken: "left early",
    returned: "left early",
    advanced: "left early",
    backwards: "only `for` can iterate",
    listed: "only `for` can iterate",
    whole: "not on whole arrays",
    chained: "an element has no elements",
    rooted: "has no value while recording",
    bounded_by_data: "an element cannot be an index",
    doubled: "more than 10000 operators",
    powered: "powers are not supported",
    misspelt: "tuple index out of range",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refused_with_its_line(function):
    with pytest.raises(OperatorError) as caught:
        nest(u=array("n"), v=array("n"))(function)
    code = function.__code__
    lines = range(code.co_firstlineno, max(line for *_, line in code.co_lines() if line) + 1)
    assert REFUSED[function] in str(caught.value)
    assert any(f"test_values.py:{line}\n" in str(caught.value) for line in lines), str(caught.value)


@nest(u=array("n"), v=array("n"))
def allowed(u, v):
    def twice(i):
        return 2 * v[i]

    once_more = loop(u.shape[0] - 3)
    for i in once_more:
        u[i] = twice(i) + sum(v[i + k] for k in loop(3))
    for i in once_more:
        u[i] += v[i + 1]
        a = u[i]
        a += v[i]
        i = i + 1
        u[i] = a
    for i in loop(u.shape[0] - 1, -1, -1):
        v[i] = u[i] + 1


@compiled
def test_python_that_is_the_same_in_every_iteration_is_allowed():
    assert_same(allowed, np.arange(8.0), np.arange(8.0)[::-1].copy())


@nest(u=array("n"), a=array("n"), b=array("n"), low=array("n"), high=array("n"), few=array("n"), other=array("n"))
def extremes(u, a, b, low, high, few, other):
    for i in loop(u.shape[0]):
        low[i] = minimum(a[i], b[i])
        high[i] = maximum(a[i], b[i])
        few[i] = minimum(a[i], 1)
        other[i] = where(a[i] < b[i], abs(a[i]), -b[i]) + where(a[i] == b[i], 1, 2)
        u[i] = 2 * maximum(3 * a[i], b[i] + a[i])


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_of_nan_infinity_and_zeros(dtype):
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], dtype)
    a, b = (each.ravel() for each in np.meshgrid(values, values))
    empty = [np.zeros_like(a) for _ in range(4)]
    assert_same(extremes, empty[0], a, b, *empty)
    low, high = extremes(empty[0], a, b, *empty)[1:3]
    np.testing.assert_array_equal(low, np.minimum(a, b))
    np.testing.assert_array_equal(high, np.maximum(a, b))
    equal = a == b  # of equal values the second: of 0.0 and -0.0 too
    for found in (low, high):
        assert (np.signbit(found) == np.signbit(b))[equal].all()


@compiled
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint16"])
def test_extremes_of_integers(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, info.max, 0, 1, info.max // 2], dtype)
    a, b = (each.ravel() for each in np.meshgrid(values, values))
    assert_same(extremes, a, a, b, a, a, a, a)


@nest(u=array("n"))
def more(u, steps):
    for _ in loop(steps):
        for i in loop(u.shape[0]):
            u[i] = u[i] + 1


@pytest.mark.parametrize("steps", [2**64 + 3, 10**30, 2**63, -(2**64) + 3, 2.0, True, None, math.nan])
def test_steps_that_nothing_can_count(steps):
    for way in (more, more.numpy, more.reference):
        with pytest.raises(OperatorError, match="steps must be"):
            way(np.zeros(2), steps=steps)


@pytest.mark.parametrize("shape", [(), ("n+1",), ("",), ("for",), (0,), (-1,), (True,), (2.5,), (None,), (2**80,)])
def test_axes(shape):
    with pytest.raises(OperatorError, match="axis"):
        array(*shape)


def test_arguments_of_the_function():
    with pytest.raises(OperatorError, match=r"takes '\*u'"):
        nest(u=array("n"))(lambda *u: None)
    with pytest.raises(OperatorError, match=r"by array\(…\)"):
        nest(u=("n",))(lambda u: None)


def test_constants_beyond_the_dtype():
    @nest(u=array("n"))
    def far(u):
        for i in loop(u.shape[0]):
            u[i] = u[i] + 1e300

    with pytest.raises(OperatorError, match="is no float32"):
        far(np.ones(3, np.float32))
    assert far.numpy(np.ones(1))[0] == 1e300
    with pytest.raises(OperatorError, match="finite"):

        @nest(u=array("n"))
        def huge(u):
            u[0] = 10**400


def test_numpys_constants_have_their_dtype():
    @nest(u=array("n"))
    def scaled(u):
        for i in loop(u.shape[0]):
            u[i] = u[i] * np.float64(0.1)

    with pytest.raises(OperatorError, match="float32 and float64"):
        scaled(np.ones(3, np.float32))
    assert scaled.numpy(np.ones(1))[0] == 0.1


@nest(u=array("n"), v=array("n"), k=array("n", dtype="uint8"))
def chosen(u, v, k):
    for i in loop(u.shape[0]):
        u[i] = v[i] * where(v[i] > 0.5, 0.1, 0.2) + where(u[i] > 1, 0.1, u[i])
        v[i] = where(where(v[i] > 0.5, 1, 0) < where(u[i] > 0.5, 0.1, 0.7), v[i], -v[i])
        k[i] = -where(k[i] > 3, k[i], 2)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_where_chooses(dtype):
    rng = np.random.default_rng(1)
    u, v = rng.random((2, 50)).astype(dtype)
    assert_same(chosen, u, v, np.arange(50, dtype=np.uint8))


def test_operators_on_numbers_that_where_chooses():
    @nest(u=array("n"))
    def added(u):
        for i in loop(u.shape[0]):
            u[i] = where(u[i] > 0, 0.1, 0.2) + where(u[i] > 1, 0.3, 0.4)

    with pytest.raises(OperatorError, match="numbers that where chooses"):
        added.numpy(np.ones(1, np.float32))


@pytest.mark.parametrize(
    "value",
    [
        lambda k: where(k > 3, 300, 2),
        lambda k: k + where(k > 3, 300, 2),
        lambda k: where(k > 1, where(k > 3, 300, 1), 2),
        lambda k: where(k < where(k > 5, 300, 4), 1, 2),
    ],
    ids=["alone", "added", "nested", "compared"],
)
def test_numbers_that_where_chooses_are_of_the_dtype(value):
    """C and NumPy would wrap 300 around, each at another place; the reference raises OverflowError."""

    @nest(k=array("n", dtype="uint8"))
    def large(k):
        for i in loop(k.shape[0]):
            k[i] = value(k[i])

    for run in (large, large.numpy, large.reference):
        with pytest.raises(OperatorError, match="300 is no uint8"):
            run(np.arange(6, dtype=np.uint8))


@pytest.mark.parametrize("text", ["12345678901234567890,0;0,1", "4x12345678901234567890", "-12345678901234567890"])
def test_entries_beyond_64_bits(text):
    from dovetail.loops.matrices import parse_matrix
    from dovetail.tiling.spaces import Space

    with pytest.raises(OperatorError, match="an entry of more than 18 digits"):
        parse_matrix(text, "--deps")
    with pytest.raises(OperatorError, match="an end of more than 15 digits"):
        Space.parse("12345678901234567890x5")
    with pytest.raises(OperatorError, match="not a matrix of whole numbers"):
        parse_matrix("1,a;0,1", "--deps")


@nest(
    a=array("n", dtype="int32"), b=array("n", dtype="uint32"), c=array("n", dtype="int64"), d=array("n", dtype="uint64")
)
def constants_at_the_ends(a, b, c, d):
    for i in loop(a.shape[0]):
        a[i] = where(a[i] <= a[i] * (-(2**31)), 1, a[i] - (-(2**31)))
        b[i] = where(b[i] < b[i] * (2**32 - 1), 1, b[i] + (2**32 - 1))
        c[i] = where(c[i] <= c[i] * (-(2**63)), 1, c[i] - (-(2**63)))
        d[i] = where(d[i] < d[i] * (2**64 - 1), 1, d[i] + (2**64 - 1))


@compiled
def test_constants_at_the_ends_of_a_dtype():
    values = [0, 1, 2, 3, 2**31 - 1]
    assert_same(constants_at_the_ends, *(np.array(values, dtype) for dtype in ("int32", "uint32", "int64", "uint64")))


@compiled
@pytest.mark.parametrize("way", ["compiled", "numpy"])
def test_long_nests_can_be_interrupted(way):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    more(np.zeros(2), steps=1)  # compiled before the time runs
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            (more if way == "compiled" else more.numpy)(np.zeros(2), steps=10**12)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert more(np.zeros(2), steps=10**8).tolist() == [10**8] * 2  # in a thread, to its end


@pytest.mark.parametrize("offset", [2, -2])
def test_a_read_out_of_bounds_that_nothing_uses(offset):
    @nest(u=array("n", time=True, dtype="float64"))
    def fading(u, steps):
        for t in loop(steps):
            for i in loop(1, u.shape[0] - 1):
                unused = u[t, i + offset]  # noqa: F841
                u[t + 1, i] = 0.5 * u[t, i]

    given = np.arange(4.0)
    assert np.array_equal(fading(given, steps=1), [0, 0.5, 1, 3])
    assert np.array_equal(fading.numpy(given, steps=1), [0, 0.5, 1, 3])
    with pytest.raises(
        OperatorError, match=r"index out of bounds: \[-?\d+\] in 'u' of shape \(4,\)[^$]*leave the read out"
    ):
        fading.reference(given, steps=1)
