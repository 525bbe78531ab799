"""loops: nests read as their textbook form; what cannot be right is refused, with the line that says it."""

import numpy as np
import pytest

from dovetail.core import OperatorError
from dovetail.loops import array, loop, maximum, nest, sqrt, where
from dovetail.loops import problems as shipped


def refused(arrays, function, *words):
    """The error of a function that is no nest: every word of it, and the file it was written in."""
    with pytest.raises(OperatorError) as error:
        nest(**arrays)(function)
    text = str(error.value)
    assert not [word for word in words if word not in text], text
    return text


LINE = {"u": array("n", time=True, boundary="fixed")}


def test_a_nest_prints_as_it_was_written():
    @nest(u=array("n", "m"))
    def sweep(u, steps):
        n, m = u.shape
        for _ in loop(steps):
            for i in loop(1, n - 1):
                for j in loop(i, m - 1):
                    u[i, j] = 0.25 * (u[i - 1, j] - (u[i + 1, j] - 2)) / -u[i, j + 1]

    assert str(sweep).splitlines() == [
        "for step in loop(0, steps):",
        "    for i in loop(1, n - 1):",
        "        for j in loop(i, m - 1):",
        "            u[i, j] = 0.25 * (u[i - 1, j] - (u[i + 1, j] - 2)) / -u[i, j + 1]",
    ]
    assert sweep.statements[0].line.startswith("test_record.py:")


class TestRefused:
    def test_index_out_of_bounds(self):
        def f(u, steps):
            for t in loop(steps):
                for i in loop(u.shape[0]):
                    u[t + 1, i] = u[t, i - 1]

        refused(LINE, f, "index out of bounds: u[t, i - 1] lies 1 below 0 in axis 0", "test_record.py:", "i in [0, n)")

        def g(u):
            for i in loop(u.shape[0]):
                for j in loop(i + 1):
                    u[j + 1] = u[j]

        refused({"u": array("n")}, g, "u[j + 1] lies 1 beyond n - 1")

    def test_out_of_bounds_by_the_sizes_of_a_call(self):
        @nest(u=array("n"), v=array("m"))
        def f(u, v):
            for i in loop(u.shape[0]):
                u[i] = v[i]

        assert f.reference(np.zeros(2), np.ones(3)).tolist() == [1, 1]
        with pytest.raises(
            OperatorError, match=r"index out of bounds: v\[i\] lies 1 beyond m - 1 in axis 0 where n = 4"
        ):
            f(np.zeros(4), np.ones(3))

    def test_undefined_boundary(self):
        def f(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 1, i] = u[t, i - 1]

        refused({"u": array("n", time=True)}, f, "undefined boundary: u[t, i - 1]", "boundary='fixed'")
        refused({"u": array("n", time=True, boundary="periodic")}, f, "u is periodic", "let the loop run from 0 to n")

    def test_cyclic_statements(self):
        def ahead(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 1, i] = u[t, i] + u[t + 1, i + 1]

        refused(LINE, ahead, "cyclic statements: u[t + 1, i] needs u[t + 1, i + 1] before that is computed")

        def itself(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 1, i] = u[t + 1, i] + u[t, i]

        refused(LINE, itself, "cyclic statements")

        def later(u, steps):
            for t in loop(1, steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t, i] = u[t + 1, i]

        refused(LINE, later, "cyclic statements", "no step before it computes that level")

        def round_and_round(u, v, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 1, i] = v[t + 1, i - 1]
                    v[t + 1, i] = u[t + 1, i + 1]

        refused(LINE | {"v": LINE["u"]}, round_and_round, "cyclic statements: v[t + 1, i] needs u[t + 1, i + 1]")

        def wraps(u, steps):
            for t in loop(steps):
                for i in loop(u.shape[0]):
                    u[t + 1, i] = u[t + 1, i - 1]

        periodic = {"u": array("n", time=True, boundary="periodic")}
        refused(periodic, wraps, "cyclic statements", "wraps around")

    def test_a_running_sum_is_no_cycle(self):
        @nest(**LINE)
        def sums(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0]):
                    u[t + 1, i] = u[t + 1, i - 1] + u[t, i]

        assert sums(np.ones(4), steps=2).tolist() == [1, 3, 6, 10] == sums.reference(np.ones(4), steps=2).tolist()

    def test_indices_that_are_not_affine(self):
        def product(u):
            for i in loop(u.shape[0]):
                for j in loop(u.shape[0]):
                    u[i * j] = 0

        refused({"u": array("n")}, product, "non-affine index", "(i) * (j)")

        def halves(u):
            for i in loop(u.shape[0]):
                u[i // 2] = 0

        refused({"u": array("n")}, halves, "non-affine index", "(i) // 2")

        def by_data(u):
            for i in loop(u.shape[0]):
                u[i] = u[u[i]]

        refused({"u": array("n")}, by_data, "non-affine index", "an element cannot be an index")

    def test_branches(self):
        def on_data(u):
            for i in loop(u.shape[0]):
                u[i] = max(u[i], 0)

        refused({"u": array("n")}, on_data, "cannot branch on data", "maximum(a, b)")

        def on_index(u):
            for i in loop(u.shape[0]):
                if i == 0:
                    u[i] = 0

        refused({"u": array("n")}, on_index, "a condition on an index")

    def test_an_index_outside_its_loop(self):
        def f(u):
            for i in loop(u.shape[0] - 1):
                u[i] = 0
            u[i + 1] = 1

        refused({"u": array("n")}, f, "index i outside its loop")

    def test_an_index_as_data(self):
        def f(u):
            for i in loop(u.shape[0]):
                u[i] = u[i] * i

        refused({"u": array("n")}, f, "an index cannot be used as a value")

    def test_wrong_axes_and_levels(self):
        def f(u, steps):
            for _ in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[i] = u[i]

        refused(LINE, f, "array u has other axes", "2 subscripts, the first of them the time step")

        def g(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 1, i] = u[t - 1, i]

        refused(
            LINE, g, "levels that no argument gives", "loop(1, steps + 1) makes as many steps; or use later subscripts"
        )

        def h(u, steps):
            for t in loop(steps):
                for i in loop(1, u.shape[0] - 1):
                    u[t + 2, i] = u[t + 1, i]

        refused(
            LINE,
            h,
            "levels that no argument gives",
            "loop(-1, steps - 1) makes as many steps; or use earlier subscripts",
        )

    def test_too_much_written_out(self):
        def f(u):
            for _ in loop(5000):
                u[0] = u[0] + 1

        refused({"u": array("n")}, f, "more than 1000 statements", "take bounds from u.shape")

    @pytest.mark.parametrize("bounds", [(0, "n", 2), ("n", 0, "n"), (), (0, 1, 2, 3)])
    def test_other_steps(self, bounds):
        def f(u):
            for i in loop(*(u.shape[0] if each == "n" else each for each in bounds)):
                u[i] = 1

        refused({"u": array("n")}, f, "two bounds, and a step of 1 or -1", "test_record.py:")

    @pytest.mark.parametrize("leave", ["break", "return"])
    def test_a_loop_left_early(self, leave):
        def f(u):
            for i in loop(1, u.shape[0]):
                u[i] = u[i - 1]
                if leave == "break":
                    break
                return
            u[0] = 1

        refused({"u": array("n")}, f, "a loop is left early", "narrow its bounds")

    def test_a_range(self):
        def f(u):
            for i in range(1, u.shape[0]):
                u[i] = u[i - 1]

        refused({"u": array("n")}, f, "has no value while recording", "for i in loop")

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (lambda a: a % 2, "an operator that loops do not have"),
            (lambda a: 2**a, "an operator that loops do not have"),
            (lambda a: a << 1, "an operator that loops do not have"),
            (np.tanh, "a function that loops do not have"),
            (lambda a: np.add.reduce(a), "a function that loops do not have"),
        ],
    )
    def test_what_is_not_there(self, value, words):
        def f(u):
            for i in loop(u.shape[0]):
                u[i] = value(u[i])

        refused({"u": array("n")}, f, words, "test_record.py:")

    def test_declarations(self):
        with pytest.raises(OperatorError, match="unknown boundary 'open'"):
            array("n", time=True, boundary="open")
        with pytest.raises(OperatorError, match="without a time axis"):
            array("n", boundary="periodic")
        with pytest.raises(OperatorError, match="no loop computes in dtype 'float16'"):
            array("n", dtype="float16")

        def f(v):
            v[0] = 1

        refused({"u": array("n")}, f, "f takes no argument 'u'")


class TestArguments:
    heat = staticmethod(shipped.jacobi2d)

    @pytest.mark.parametrize(
        ("arrays", "parameters", "words"),
        [
            ([np.zeros((4, 4, 4))], {"steps": 1}, "u must be n × m"),
            ([np.zeros((4, 4), "complex128")], {"steps": 1}, "u has dtype complex128"),
            ([np.zeros((4, 4), "int32")], {"steps": 1}, "0.25 is no int32|int32 and real number"),
            ([np.zeros((4, 4))], {}, "jacobi2d needs steps="),
            ([np.zeros((4, 4))], {"steps": -1}, "steps must be at least 0"),
            ([np.zeros((4, 4))], {"steps": 1, "omega": 2}, "no parameter 'omega'"),
            ([], {"steps": 1}, "takes 1 arrays: u"),
            ([[[1.0]]], {"steps": 1}, "u must be a NumPy array"),
        ],
    )
    def test_refused(self, arrays, parameters, words):
        for way in (self.heat, self.heat.reference, self.heat.numpy):
            with pytest.raises(OperatorError, match=words):
                way(*arrays, **parameters)

    def test_axes_and_dtypes_must_agree(self):
        wave = shipped.acoustic3d
        u, c = np.zeros((2, 5, 6, 7)), np.zeros((5, 6, 7))
        assert wave(u, c, steps=1).shape == u.shape
        with pytest.raises(OperatorError, match=r"u must be 2 levels \(of the first steps\), each n × m × l"):
            wave(u[0], c, steps=1)
        with pytest.raises(OperatorError, match="axis 1 of c must have 6 elements, as axis 1 of u is"):
            wave(u, c[:, :5], steps=1)
        with pytest.raises(OperatorError, match="c must be float64, as u is"):
            wave(u, c.astype("float32"), steps=1)

    def test_too_small_to_mirror(self):
        @nest(u=array("n", time=True, boundary="reflecting"))
        def f(u, steps):
            for t in loop(steps):
                for i in loop(u.shape[0]):
                    u[t + 1, i] = u[t, i - 2]

        assert f(np.arange(3.0), steps=1).tolist() == [2, 1, 0]
        with pytest.raises(OperatorError, match="too small along axis 0"):
            f(np.arange(2.0), steps=1)

    def test_types_within_a_statement(self):
        def of(function, **arrays):
            return nest(**arrays)(function)

        def mixed(u, v):
            for i in loop(u.shape[0]):
                u[i] = u[i] + v[i]

        def halves(u):
            for i in loop(u.shape[0]):
                u[i] = u[i] / 2

        def large(u):
            for i in loop(u.shape[0]):
                u[i] = u[i] + 300

        def truth(u):
            for i in loop(u.shape[0]):
                u[i] = where(u[i], 1, 0)

        def root(u):
            for i in loop(u.shape[0]):
                u[i] = sqrt(u[i])

        def joined(u):
            for i in loop(u.shape[0]):
                u[i] = where((u[i] > 0) & u[i], 1, 0)

        def held(u):
            for i in loop(u.shape[0]):
                u[i] = ~(u[i] > 0)

        line, bytes_ = array("n"), array("n", dtype="uint8")
        for made, given, words in (
            (of(mixed, u=line, v=bytes_), (np.zeros(2), np.zeros(2, "uint8")), "float64 and uint8 in one expression"),
            (of(halves, u=bytes_), (np.zeros(2, "uint8"),), "/ is for floating values"),
            (of(large, u=bytes_), (np.zeros(2, "uint8"),), "300 is no uint8"),
            (of(truth, u=line), (np.zeros(2),), "where takes a condition first"),
            (of(root, u=bytes_), (np.zeros(2, "uint8"),), "sqrt is for floating values"),
            (of(joined, u=line), (np.zeros(2),), "& | ~ join conditions"),
            (of(held, u=line), (np.zeros(2),), "float64 and condition"),
        ):
            with pytest.raises(OperatorError, match=words) as error:
                made(*given)
            assert "test_record.py:" in str(error.value)


def test_functions_work_on_numbers_too():
    assert where(True, 1, 2) == 1
    assert maximum(2, 3) == 3
    assert sqrt(4.0) == 2
