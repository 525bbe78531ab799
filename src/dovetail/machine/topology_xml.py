"""topology_xml: machines from the topology files of other tools: hwloc's XML, and NCCL's (NCCL_TOPO_DUMP_FILE)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dovetail.core import MachineError
from dovetail.machine.machine import CURVE_SCHEMA, SWITCH, Link, Machine

MOST_BYTES = 32 << 20
NVSWITCH = "0x0680"  # how the class of a bridge begins, as which NVSwitches appear
NVLINK_BYTES_PER_S = {60: 18.0e9, 70: 20.0e9, 80: 20.0e9, 90: 20.6e9}  # of one link, by the least sm
PCI_LANE_BYTES_PER_S = {2.5: 0.25e9, 5.0: 0.5e9, 8.0: 0.985e9, 16.0: 1.97e9, 32.0: 3.94e9}  # by GT/s
UNKNOWN_SPEEDS, UNKNOWN_LANES, MOST_LANES = ("", "Unknown", "Unknown speed"), 255, 32
LATENCY_S = {"nvlink": 3.4e-6, "pci": 5.7e-6}
SOURCE = "rates of a link and latencies: NCCL's own constants (src/graph/topo.h, tuning.cc: ring, Simple)"
_SPEED = re.compile(r"(\d{1,3}(?:\.\d+)?)(?: GT/s(?: PCIe)?)?", re.ASCII)
_ANEW = "write it anew: `lstopo --of xml FILE`, or run a program with NCCL_TOPO_DUMP_FILE=FILE"


def read_topology(path: str | Path) -> Machine:
    """Return the machine of a topology file, hwloc's or NCCL's.

    Parameters
    ----------
    path : path
        The XML file. Entities in it are refused.

    Returns
    -------
    Machine
        From hwloc: one node with a rank for each core, and no costs. The machine can be shown and plotted; plans and
        simulations need costs (`Machine.with_costs`). `dovetail probe` makes a machine of its own, of the host that it
        runs on. From NCCL: a rank for each GPU, each a node of its own, linked by NVLink, an NVSwitch, or PCI;
        bandwidths by NCCL's constants.

    Raises
    ------
    MachineError
        If the file is missing, too long, no XML, or of another kind, names no cores or GPUs, or has a link whose count,
        speed or width makes no sense.
    """
    root = _parse(Path(path))
    name = Path(path).stem
    if root.tag == "topology":
        return _from_hwloc(root, name, path)
    if root.tag == "system":
        return _from_nccl(root, name, path)
    found = f"a document <{root.tag}>, neither <topology> (hwloc) nor <system> (NCCL)"
    raise MachineError(f"{path} is no topology", found=found, hint=_ANEW)


def _parse(path: Path) -> ElementTree.Element:
    try:
        data = path.read_bytes()[: MOST_BYTES + 1]
    except OSError as error:
        raise MachineError(f"cannot read {path}", found=error.strerror or str(error)) from error
    if len(data) > MOST_BYTES:
        raise MachineError(f"{path} is no topology", found=f"more than {MOST_BYTES >> 20} MiB")
    if b"<!ENTITY" in data or b"\0" in data:
        raise MachineError(f"{path} is refused", found="an XML entity, or bytes of zero", hint=_ANEW)
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise MachineError(f"{path} is no XML", found=str(error), hint=_ANEW) from error


def _from_hwloc(root: ElementTree.Element, name: str, path: str | Path) -> Machine:
    counts = Counter(each.get("type", "") for each in root.iter("object"))
    cores = counts["Core"] or counts["PU"]
    if not cores:
        kinds = ", ".join(sorted(filter(None, counts))) or "none"
        raise MachineError(f"{path} names no cores", found=f"objects {kinds}", hint=_ANEW)
    models = [each.get("value") for each in root.iter("info") if each.get("name") == "CPUModel"]
    facts: dict[str, Any] = {"cores": cores, "packages": counts["Package"], "numa_nodes": counts["NUMANode"]}
    facts |= {"cpu": str(models[0])} if models else {}
    caches = {f"{kind[:2].lower()}_caches": counts[kind] for kind in ("L2Cache", "L3Cache") if counts[kind]}
    known = {"label": "imported, not measured", "source": f"hwloc, {Path(path).name}"}
    return Machine(name, cores, (0,) * cores, (), {}, {**facts, **caches}, known)


def _from_nccl(root: ElementTree.Element, name: str, path: str | Path) -> Machine:
    gpus = {pci.get("busid", ""): gpu for pci in root.iter("pci") for gpu in pci.findall("gpu")}
    if not gpus:
        raise MachineError(f"{path} names no GPUs", found="no <gpu> within a <pci>", hint=_ANEW)
    number = {bus: rank for rank, bus in enumerate(gpus)}
    links: dict[tuple[int, int], tuple[str, float]] = {}
    for bus, gpu in gpus.items():
        for target, count in _nvlinks(gpu, path):
            rate = count * _nvlink_rate(_whole(gpu, "sm", path))
            here, kind = number[bus], f"nvlink x{count}"
            if target in number:
                links[here, number[target]] = kind, rate
            elif target == NVSWITCH:
                links |= {(here, SWITCH): (kind, rate), (SWITCH, here): (kind, rate)}
    if not _connected(links, len(gpus)):
        for bus, rate in _pci_rates(root, path).items():
            kind = f"pci {rate / 1e9:.3g} GB/s"
            ends = (number[bus], SWITCH), (SWITCH, number[bus])
            links |= {each: (kind, rate) for each in ends if each not in links}
    costs = {f"p2p:{kind}": _line(kind, rate) for kind, rate in links.values()}
    nets = [_whole(net, "speed", path) for net in root.iter("net")]
    facts = {"device": f"{len(gpus)} GPUs", "network_cards": len(nets), "network_mbit_per_s": sum(nets)}
    known = {"label": "imported, not measured", "source": f"NCCL, {Path(path).name}; {SOURCE}"}
    table = tuple(Link(*ends, kind) for ends, (kind, _) in sorted(links.items()))
    return Machine(name, len(gpus), tuple(range(len(gpus))), table, costs, facts, known)


def _nvlinks(gpu: ElementTree.Element, path: str | Path) -> Iterator[tuple[str, int]]:
    """Yield where the NVLinks of a GPU lead (a bus, or NVSWITCH), and how many lead there."""
    counts: Counter[str] = Counter()
    for link in gpu.findall("nvlink"):
        switch = link.get("tclass", "").startswith(NVSWITCH)
        counts[NVSWITCH if switch else link.get("target", "")] += _whole(link, "count", path)
    yield from counts.items()


def _nvlink_rate(sm: int) -> float:
    """Return the bytes/s of one NVLink of a GPU.

    >>> _nvlink_rate(86) == _nvlink_rate(80) == 20e9
    True
    """
    known = [least for least in NVLINK_BYTES_PER_S if least <= sm]
    return NVLINK_BYTES_PER_S[max(known, default=60)]


def _pci_rates(root: ElementTree.Element, path: str | Path) -> dict[str, float]:
    """Return the bytes/s of each GPU's PCI link: the slowest on the way to its CPU."""
    above = {child: each for each in root.iter() for child in each}
    rates = {}
    for pci in root.iter("pci"):
        if pci.find("gpu") is None:
            continue
        known: list[float] = []
        here: ElementTree.Element | None = pci
        while here is not None and here.tag == "pci":
            known.append(_pci_rate(here, path))
            here = above.get(here)
        rates[pci.get("busid", "")] = min(known)
    return rates


def _pci_rate(pci: ElementTree.Element, path: str | Path) -> float:
    """Return the bytes/s of a PCI link.

    Virtual machines hide speed and width: the file has "" or "Unknown", and 0 lanes. NCCL then takes 8 GT/s and 16
    lanes, and so does this function. Linux says 255 for a width it does not know.
    """
    text = pci.get("link_speed", "").strip()
    speed = _pci_speed("8 GT/s" if text in UNKNOWN_SPEEDS else text, path)
    lane = PCI_LANE_BYTES_PER_S[min(PCI_LANE_BYTES_PER_S, key=lambda known: abs(known - speed))]
    lanes = _whole(pci, "link_width", path) if pci.get("link_width") else 0
    if lanes > MOST_LANES and lanes != UNKNOWN_LANES:
        raise MachineError(f"{path}: a PCI link has 1 to {MOST_LANES} lanes", found=f"link_width={lanes}", hint=_ANEW)
    return lane * (lanes if 0 < lanes <= MOST_LANES else 16)


def _pci_speed(text: str, path: str | Path) -> float:
    """Return the GT/s in `8 GT/s`, `8.0 GT/s PCIe` or `8`."""
    match = _SPEED.fullmatch(text)
    if match is None or not float(match[1]):
        hint = f"a speed such as '16.0 GT/s PCIe', or '' where it is unknown; {_ANEW}"
        raise MachineError(f"{path}: link_speed of <pci> is no speed", found=repr(text[:40]), hint=hint)
    return float(match[1])


def _connected(links: dict[tuple[int, int], tuple[str, float]], ranks: int) -> bool:
    """Return whether every GPU reaches every other one."""
    for start in range(ranks):
        reached, more = {start}, [start]
        while more:
            here = more.pop()
            new = {b for a, b in links if a == here} - reached
            reached |= new
            more += new
        if not set(range(ranks)) <= reached:
            return False
    return True


def _whole(element: ElementTree.Element, key: str, path: str | Path) -> int:
    """Return an attribute as a number that is not negative; 0 if it is absent."""
    text = element.get(key, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise MachineError(f"{path}: {key} of <{element.tag}> is no number", found=repr(text[:40]), hint=_ANEW)
    return int(text)


def _line(kind: str, rate: float) -> dict[str, Any]:
    if not rate:
        raise MachineError(f"a link '{kind}' has no bandwidth", hint=_ANEW)
    segments = [[0, LATENCY_S["nvlink" if kind.startswith("nvlink") else "pci"], 1 / rate, 0.0]]
    head = {"schema": CURVE_SCHEMA, "x_unit": "bytes", "segments": segments, "low": 0.0, "high": None}
    return {**head, "label": "preset", "provenance": {"source": SOURCE}}
