"""Machine: ranks, nodes, links, cost curves and facts of the hardware that a Program is to run on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.core import MachineError, check_schema, load_document, save_json
from dovetail.machine.paths import shortest, unlinked
from dovetail.machine.presets import families, generated_document, preset_document, presets

SCHEMA = "dovetail.machine/1"
CURVE_SCHEMA = "dovetail.curve/1"
SWITCH = -1
SHARED_COST = "shared:"  # before the key of a cost through shared memory
LIBRARY = "library"  # part of the keys of costs measured with the library's collectives
COST_KEYS = (
    "p2p:<link kind>",
    "exchange:<link kind>",
    "<collective>:<ranks>",
    "call:<MPI call>:<ranks>",
    "call:<MPI call>:<link kind>",
    "kernel:<key>",
    "flops:<kernel>:<dtype>",
    "memory",
    "reduce",
    "copy",
    "shared:<p2p or exchange>:<link kind>",
    "shared:<reduce or copy>",
    "cil:compute",
    "cil:net",
    "cil:compute:library",
    "cil:net:library",
)
_COST_KEY = re.compile(
    r"(p2p|exchange|kernel|flops|call):.+|memory|reduce|copy|shared:((p2p|exchange):.+|reduce|copy)|"
    r"cil:(compute|net)(:library)?|(?!cil:|shared:)[a-z_]+:[1-9]\d*"
)


class Link(NamedTuple):
    """One direction between two nodes, or between a node and a switch. Two directions are two links.

    Switches have negative numbers; where there is one, it is `SWITCH`.

    A link from a node to itself names the kind of links between ranks of that node (default: `shm`). Such ranks do not
    share a wire: every ordered pair has its own.
    """

    src: int
    dst: int
    kind: str


@dataclass(frozen=True)
class Machine:
    """The hardware that a schedule runs on: ranks, nodes, links, cost curves and facts.

    Attributes
    ----------
    name : str
        Name in tables and errors.
    ranks : int
        Number of ranks.
    nodes : tuple of int
        `nodes[r]` is the node of rank r.
    links : tuple of Link
        Directed links between nodes, or between a node and the switch.
    costs : dict
        Cost key → JSON of a Curve (keys: see Notes).
    facts : dict
        Properties by name (see Notes).
    provenance : dict
        Where the figures come from.

    Raises
    ------
    MachineError
        If a rank, node, link or cost key is invalid. The error names it.

    Notes
    -----
    Cost keys. Curves are seconds against bytes unless stated:

    - `p2p:<kind>`: a message one way. `exchange:<kind>`: a message in a stream that goes both ways at once.
    - `all_reduce:<ranks>` and other collectives of the library.
    - `kernel:<key>`: a computation, against its amount (rows).
    - `flops:<kernel>:<dtype>` against FLOP, and `memory` against bytes read and written. A computation without its own
      curve takes the longer of both.
    - `reduce`, `copy`.
    - `shared:p2p:<kind>`, `shared:exchange:<kind>`, `shared:reduce`, `shared:copy`: the same in Programs whose messages
      go through memory that the ranks of one host share.
    - `cil:compute`: factor by which traffic slows computations, against message bytes. `cil:net`: factor by which
      computations slow traffic. `cil:compute:library`, `cil:net:library`: the same for the library's collectives;
      default: the former.

    Facts that other packages read:

    - `eager_limit_bytes`: a number, or one for each link kind. Larger messages wait for their receive. 0: all wait.
    - `slice_bytes`: on this machine concurrent long messages interleave, unless they are sent in slices of this size;
      then they arrive one after another. Absent: messages do not interleave, or it is unknown.
    - `ports_per_rank`: kinds of links of which every rank of a node has its own (network cards of GPUs), so that
      messages of several ranks leave or enter the node at once.
    - `stores_messages`: kinds of links whose switch stores messages: a message leaves its node as soon as the link to
      the switch is free, and waits there for the link to its receiver. Else it waits until both are free.
    - `k_is_per_rank`: a matmul operator's k is that of each rank (as in seed 000), not the sum over ranks.
    - `dtype`: element type of the compute curves.
    - `contention_prior`: the factor on communication in seed 000's rule. Predictions use 1.0 by default.
    - `published`: figures that the machine's source published, in seconds. Predictions do not use them.

    Examples
    --------

    >>> pair = Machine("pair", 2, (0, 1), (Link(0, 1, "tcp"), Link(1, 0, "tcp")))
    >>> pair.route(0, 1)
    ('tcp', (0,))
    """

    name: str
    ranks: int
    nodes: tuple[int, ...]
    links: tuple[Link, ...] = ()
    costs: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_ranks(self)
        _check_links(self)
        _check_costs(self)

    def __hash__(self) -> int:
        return hash((self.name, self.ranks, self.nodes, self.links))

    def __repr__(self) -> str:
        nodes = f"{self.num_nodes} node{'s' * (self.num_nodes != 1)}"
        return f"<Machine '{self.name}': {self.ranks} ranks on {nodes}, {len(self.costs)} costs>"

    @property
    def num_nodes(self) -> int:
        return len(set(self.nodes))

    def kind_within(self, node: int) -> str:
        """Return the link kind between ranks of `node`: that of its link to itself, else `shm`."""
        row = self._rows.get((node, node))
        return "shm" if row is None else self.links[row].kind

    @cached_property
    def _rows(self) -> dict[tuple[int, int], int]:
        return {(link.src, link.dst): row for row, link in enumerate(self.links)}

    @property
    def slice_bytes(self) -> int:
        """Return the fact `slice_bytes`, in bytes; 0 if absent."""
        return int(self.facts.get("slice_bytes", 0))

    def route(self, src: int, dst: int) -> tuple[str, tuple[int, ...]]:
        """Return the link kind and the rows of `links` that a message occupies.

        Uses the direct link if there is one, else the switch, else the fewest links from node to node (a torus).

        Parameters
        ----------
        src, dst : int
            Ranks. Within a node no link is occupied.

        Raises
        ------
        MachineError
            If no links lead from one node to the other.

        Examples
        --------

        >>> ring = Machine("ring", 4, (0, 1, 2, 3), tuple(Link(a, (a + 1) % 4, "wire") for a in range(4)))
        >>> ring.route(3, 1)
        ('wire', (3, 0))
        """
        a, b = self.nodes[src], self.nodes[dst]
        if a == b:
            return self.kind_within(a), ()
        hops = (self._rows[a, b],) if (a, b) in self._rows else self._ways(a).get(b)
        if hops is None:
            raise MachineError(f"machine '{self.name}' has no link from node {a} to node {b}")
        return self.links[hops[0]].kind, hops

    def _ways(self, start: int) -> dict[int, tuple[int, ...]]:
        """Return the rows of the links from a node to each other node."""
        if start not in self._known_ways:
            self._known_ways[start] = shortest(self._rows, start)
        return self._known_ways[start]

    @cached_property
    def _known_ways(self) -> dict[int, dict[int, tuple[int, ...]]]:
        return {}

    def with_costs(self, costs: Mapping[str, dict[str, Any]], **facts: Any) -> Machine:
        """Return a copy with cost curves (key → JSON of a Curve) and facts added or replaced.

        >>> load_free = Machine("one", 1, (0,)).with_costs({}, blas="openblas")
        >>> load_free.facts
        {'blas': 'openblas'}
        """
        return replace(self, costs={**self.costs, **costs}, facts={**self.facts, **facts})

    @property
    def shared(self) -> Machine:
        """This machine with the costs of Programs whose messages go through shared memory."""
        heads = {key: curve for key, curve in self.costs.items() if key.startswith(SHARED_COST)}
        return self.with_costs({key.removeprefix(SHARED_COST): curve for key, curve in heads.items()})

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; `from_json` reads it."""
        head = {"schema": SCHEMA, "name": self.name, "ranks": self.ranks, "nodes": list(self.nodes)}
        body = {"costs": dict(self.costs), "facts": dict(self.facts), "provenance": dict(self.provenance)}
        return {**head, "links": [list(link) for link in self.links], **body}

    @classmethod
    def load(cls, name_or_path: str | Path) -> Machine:
        """Return the preset of that name, or the machine in that JSON file.

        Raises MachineError if the name is unknown, or the file is missing or contains no machine.

        >>> Machine.load("atlas-a2-8").ranks
        8
        >>> Machine.load("atlas-a2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        dovetail.core.errors.MachineError: no machine 'atlas-a2'
          found       presets a100-8, atlas-a2-8, ...
          try         did you mean 'atlas-a2-8'? Or give the path of a machine's JSON file
        """
        name = str(name_or_path)
        if name in presets():
            return cls.from_json(preset_document(name))
        generated = _generated(name)
        if generated is not None:
            return cls.from_json(generated)
        if isinstance(name_or_path, Path) or name.endswith(".json") or Path(name).is_file():
            if not Path(name).exists():
                hint = "`dovetail machines` lists the known machines"
                raise MachineError(f"cannot read machine {name}", found="no such file", hint=hint)
            return load_document(name_or_path, cls.from_json, "machine")
        near = difflib.get_close_matches(name, presets(), 1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'? Or give" if near else "give"
        raise MachineError(
            f"no machine '{name}'",
            found=f"presets {', '.join((*presets(), *families()))}",
            hint=f"{hint} the path of a machine's JSON file",
        )

    def save(self, path: str | Path) -> Path:
        """Write the machine to a JSON file that `load` reads, and return its path."""
        return save_json(path, self.to_json())

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Machine:
        """Return the machine that `to_json` wrote. Raises MachineError, naming the invalid field."""
        check_schema(document, SCHEMA)
        try:
            name, ranks, nodes = document["name"], document["ranks"], tuple(document["nodes"])
            links = tuple(_link(row) for row in document["links"])
            costs, facts, provenance = (dict(document.get(key, {})) for key in ("costs", "facts", "provenance"))
        except KeyError as error:
            hint = "fields: schema, name, ranks, nodes, links, costs, facts, provenance"
            raise MachineError(f"machine document has no field {error}", hint=hint) from None
        except (TypeError, ValueError) as error:
            raise MachineError("malformed machine document", found=str(error)) from error
        return cls(name, ranks, nodes, links, costs, facts, provenance)


def even_nodes(nodes: Sequence[Any]) -> int:
    """Return the number of nodes if all hold equally many consecutive ranks, else 1. `nodes[r]`: node of rank r.

    >>> even_nodes([0, 0, 1, 1]), even_nodes([0, 1, 0, 1]), even_nodes(["a", "a", "b"])
    (2, 1, 1)
    """
    count = len(set(nodes))
    each = len(nodes) // max(count, 1)
    even = all(len(set(nodes[i * each : (i + 1) * each])) == 1 for i in range(count))
    return count if even and each * count == len(nodes) else 1


def _generated(name: str) -> dict[str, Any] | None:
    try:
        return generated_document(name)
    except ValueError as error:
        raise MachineError(f"machine '{name}' cannot be generated", found=str(error)) from None


def _link(row: Sequence[Any]) -> Link:
    if isinstance(row, str) or len(row) != 3:
        raise MachineError("a link is [source node, destination node, kind]", found=repr(row))
    return Link(*row)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_ranks(machine: Machine) -> None:
    if not isinstance(machine.name, str) or not machine.name:
        raise MachineError("a machine needs a name", found=repr(machine.name))
    where = f"machine '{machine.name}'"
    if not _is_int(machine.ranks) or machine.ranks < 1:
        raise MachineError(f"{where}: ranks must be a whole number of at least 1", found=repr(machine.ranks))
    if len(machine.nodes) != machine.ranks:
        hint = "give the node of every rank, e.g. [0, 0, 1, 1]"
        found = f"{len(machine.nodes)} nodes, {machine.ranks} ranks"
        raise MachineError(f"{where}: `nodes` must have one entry for each rank", found=found, hint=hint)
    bad = [node for node in machine.nodes if not _is_int(node) or node < 0]
    if bad:
        raise MachineError(f"{where}: nodes are numbered from 0", found=repr(bad[0]))


def _check_links(machine: Machine) -> None:
    where, nodes = f"machine '{machine.name}'", set(machine.nodes)
    seen = set()
    for link in machine.links:
        if not isinstance(link.kind, str) or not link.kind:
            raise MachineError(f"{where}: a link needs a kind such as 'tcp'", found=repr(tuple(link)))
        for end in (link.src, link.dst):
            if not _is_int(end) or (end >= 0 and end not in nodes):
                hint = f"nodes are {sorted(nodes)}; {SWITCH} is the switch, and so is any other negative number"
                raise MachineError(f"{where}: a link ends at node {end!r}, on which there is no rank", hint=hint)
        if link.src == link.dst < 0 or (link.src, link.dst) in seen:
            raise MachineError(f"{where}: link {link.src} -> {link.dst} is given twice, or joins a switch to itself")
        seen.add((link.src, link.dst))
    pair = unlinked(nodes, seen)
    if pair:
        a, b = pair
        hint = f'add [{a}, {b}, "tcp"], or [{a}, {SWITCH}, "tcp"] and [{SWITCH}, {b}, "tcp"]'
        raise MachineError(f"{where}: no links lead from node {a} to node {b}", hint=hint)


def _check_costs(machine: Machine) -> None:
    where = f"machine '{machine.name}'"
    for key, curve in machine.costs.items():
        if not isinstance(key, str) or not _COST_KEY.fullmatch(key):
            heads = [key.split(":<")[0] for key in (*COST_KEYS, "all_reduce:<ranks>")]
            near = difflib.get_close_matches(str(key).split(":")[0], heads, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise MachineError(f"{where}: unknown cost '{key}'", hint=f"{hint}keys are {', '.join(COST_KEYS)}")
        if not isinstance(curve, dict) or curve.get("schema") != CURVE_SCHEMA:
            found = repr(curve.get("schema") if isinstance(curve, dict) else curve)[:80]
            raise MachineError(f"{where}: cost '{key}' is not a {CURVE_SCHEMA} document", found=found)
