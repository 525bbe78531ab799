"""Random expressions for nests: nested tuples of a name and operands, and their values at a point."""

from hypothesis import strategies as st

from dovetail.loops import maximum, minimum, sqrt, where


def trees(axes, reach=2, offsets=None):
    """Expressions of elements of u, up to `reach` away along each axis or at `offsets`, of c, and of numbers."""
    element = st.tuples(st.just("u"), st.tuples(*[st.integers(-reach, reach)] * axes) if offsets is None else offsets)
    leaf = element | st.just(("c",)) | st.tuples(st.just("number"), st.sampled_from([1.5, 0.25, 3]))
    names = st.sampled_from(["+", "-", "*", "maximum", "minimum", "neg", "sqrt", "where"])
    return st.recursive(leaf, lambda inner: st.tuples(names, inner, inner), max_leaves=8)


def evaluate(tree, u, c, t, at):
    """The expression of such a tree at a point."""
    name, *rest = tree
    if name == "u":
        return u[(t, *(i + offset for i, offset in zip(at, rest[0], strict=True)))]
    if name in ("c", "number"):
        return c[at] if name == "c" else rest[0]
    a, b = (evaluate(each, u, c, t, at) for each in rest)
    a = a * c[at] if type(a) in (float, int) else a  # numbers alone are computed while the nest is recorded
    operations = {
        "+": lambda: a + b,
        "-": lambda: b - a,
        "*": lambda: a * b,
        "maximum": lambda: maximum(a, b),
        "minimum": lambda: minimum(a, b),
        "neg": lambda: -a,
        "sqrt": lambda: sqrt(abs(a) + 1.0),
        "where": lambda: where(a < b, a, b - a),
    }
    return operations[name]()
