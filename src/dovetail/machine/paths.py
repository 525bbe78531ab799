"""paths: shortest routes from node to node, and which nodes links reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def shortest(rows: Mapping[tuple[int, int], int], start: int) -> dict[int, tuple[int, ...]]:
    """Return the shortest route (rows of links) from a node to every other, given the row of each link.

    Of equally short routes, one through a switch is preferred, then one through nodes of small numbers. Of several
    switches that lead to the same place, destination d takes the (d mod count)-th, as in a fat tree whose routes are
    static.
    """
    out: dict[int, list[int]] = {}
    for src, dst in rows:
        out.setdefault(src, []).append(dst)
    before: dict[int, list[int]] = {start: []}
    distance, reached = {start: 0}, [start]
    for node in reached:
        for other in sorted(out.get(node, ())):
            if other not in distance:
                distance[other] = distance[node] + 1
                before[other] = [node]
                reached.append(other)
            elif distance[other] == distance[node] + 1:
                before[other].append(node)
    return {node: _way(rows, before, node) for node in reached}


def _way(rows: Mapping[tuple[int, int], int], before: Mapping[int, list[int]], end: int) -> tuple[int, ...]:
    """Return the rows of the links to `end`, given the nodes and switches before each one on shortest routes."""
    way, here = [], end
    while before[here]:
        switches = [each for each in before[here] if each < 0]
        last = switches[end % len(switches)] if switches and before[here][0] < 0 else before[here][0]
        way.append(rows[last, here])
        here = last
    return tuple(reversed(way))


def unlinked(nodes: set[int], ends: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return two nodes such that no links lead from the first to the second; None if all reach all.

    All do if one reaches all, and all reach that one.
    """
    first = min(nodes)
    for turned in (False, True):
        missing = nodes - _reached((pair[::-1] for pair in ends) if turned else ends, first)
        if missing:
            return (min(missing), first) if turned else (first, min(missing))
    return None


def _reached(ends: Iterable[tuple[int, ...]], start: int) -> set[int]:
    """Return the nodes and switches to which links lead from `start`, itself included."""
    out: dict[int, list[int]] = {}
    for src, dst in ends:
        out.setdefault(src, []).append(dst)
    found, open_ = {start}, [start]
    while open_:
        more = [each for each in out.get(open_.pop(), ()) if each not in found]
        found.update(more)
        open_ += more
    return found
