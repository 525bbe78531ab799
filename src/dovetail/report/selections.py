"""selections: selection tables for people and other tools: NCCL's tuner plugin, and MSCCL files by size range."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.core import ProgramError, save_text
from dovetail.ir import Program
from dovetail.ir.collectives import traits_of
from dovetail.report.tables import Align, render_table
from dovetail.report.units import num_bytes
from dovetail.store.selection import Row, Selection

NCCL_ALGORITHMS = {
    "ring_all_reduce": "ring",
    "ring_all_gather": "ring",
    "ring_reduce_scatter": "ring",
    "double_tree_all_reduce": "tree",
}
NCCL_PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}
HEAD = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


def selection_table(selection: Selection, *, terminal: bool = False, width: int = 100) -> str:
    """Return a table of size ranges (last size included), algorithms, and measured speed-ups over the library.

    >>> print(selection_table(Selection({}, (Row("all_gather", 2, 1, 512, 2049, "ring_all_gather"),))))
    collective  ranks  nodes   from     to  algorithm        speed-up
    ----------  -----  -----  -----  -----  ---------------  --------
    all_gather      2      1  512 B  2 KiB  ring_all_gather         –
    """
    headers = ["collective", "ranks", "nodes", "from", "to", "algorithm", "speed-up"]
    rows = []
    for row in selection.rows:
        sizes = num_bytes(row.min_bytes), num_bytes(row.max_bytes - 1)
        gains = [p.library_s / p.measured_s for p in row.points if p.library_s]
        gain = "–" if not gains else f"{min(gains):.2f} … {max(gains):.2f}" if len(gains) > 1 else f"{gains[0]:.2f}"
        rows.append([row.collective, str(row.ranks), str(row.nodes), *sizes, str(row.choice), gain])
    aligns: list[Align] = ["left", "right", "right", "right", "right", "left", "right"]
    return render_table(headers, rows, aligns, terminal=terminal, width=width)


def nccl_tuner_csv(selection: Selection) -> str:
    """Return rows for NCCL_TUNER_CONFIG_FILE, as the example plugin of NCCL (ext-tuner/example) reads them.

    The plugin knows NCCL's own algorithms only: it takes unknown algorithms for rings, unknown collectives for
    all_reduce. Rows that it cannot express are therefore comments. `max_bytes` there is included in the row.

    >>> ring = Row("all_reduce", 8, 1, 1024, 4096, "ring_all_reduce", 2, protocol="LL")
    >>> print(nccl_tuner_csv(Selection({}, (ring, Row("all_to_all", 8, 1, 0, 64)))), end="")
    # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
    allreduce,1024,4095,ring,ll,2,1,8,-1,-1
    # all_to_all of 0 to 63 bytes on 8 ranks, 1 node: library
    """
    lines = [f"# {HEAD}"]
    for row in selection.rows:
        collective, algorithm = traits_of(row.collective).nccl, NCCL_ALGORITHMS.get(row.algorithm)
        sizes, protocol = (row.min_bytes, row.max_bytes - 1), NCCL_PROTOCOLS.get(row.protocol)
        if collective and algorithm and protocol:
            channels = row.channels * row.instances
            fields = (collective, *sizes, algorithm, protocol, channels, row.nodes, row.ranks, -1, -1)
            lines.append(",".join(map(str, fields)))
        else:
            nodes = f"{row.nodes} node{'s' * (row.nodes > 1)}"
            about = f"{row.collective} of {sizes[0]} to {sizes[1]} bytes on {row.ranks} ranks, {nodes}"
            lines.append(f"# {about}: {row.choice}")
    return "\n".join(lines) + "\n"


def write_nccl_tuner(selection: Selection, path: str | Path) -> Path:
    """Write the rows for NCCL's tuner to a file."""
    return save_text(path, nccl_tuner_csv(selection))


def write_for_others(selection: Selection, folder: str | Path) -> tuple[list[Path], list[str]]:
    """Write `nccl_tuner.conf` and, in `msccl/`, XML by size; return the files, and why others could not be written."""
    place = Path(folder)
    files, refused = write_msccl(selection, place / "msccl", exported)
    return [write_nccl_tuner(selection, place / "nccl_tuner.conf"), *files], refused


def exported(row: Row) -> Program:
    """Return the Program of a row without strided slots, which MSCCL files cannot express."""
    from dovetail.collective import build

    how: dict[str, Any] = {"channels": row.channels, "instances": row.instances, "protocol": row.protocol}
    return build(row.algorithm, row.ranks, nodes=row.nodes, strided=False, **how)


def write_msccl(
    selection: Selection, folder: str | Path, program_of: Callable[[Row], Program], dialect: str = "msccl"
) -> tuple[list[Path], list[str]]:
    """Write an XML file for each row that is not the library's; minBytes and maxBytes are the row's sizes.

    `program_of` gives the Program of a row. In the dialect `msccl`, maxBytes is excluded from the row, in the others
    included. Return the files, and a sentence for each row that has none.
    """
    from dovetail.collective import msccl

    place, written, refused = Path(folder), list[Path](), list[str]()
    for row in selection.rows:
        if row.choice.is_library:
            continue
        least, most = row.min_bytes, row.max_bytes - (dialect != "msccl")
        try:
            text = msccl.write(program_of(row), dialect, protocol=row.protocol, min_bytes=least, max_bytes=most)
        except ProgramError as error:
            refused.append(f"No {dialect} file of {row.choice._replace(slice_bytes=0)}: {error.what}.")
            continue
        name = f"{row.algorithm}-{row.ranks}-{row.min_bytes}-{row.max_bytes - 1}.xml"
        written.append(save_text(place / name, text))
    return written, list(dict.fromkeys(refused))
