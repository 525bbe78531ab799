"""Draws DIL and CIL as measured on a device, where PyTorch's machine has nothing that draws: one picture for each way.

bench/gpu/plots.py RESULTS.json OUT.svg    # OUT-WAY.svg, but for products alone; needs kaleido and Chromium
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.prober.characteristics import Beside, Characteristic, Characteristics, Cut, Ratio
from dovetail.report.characteristics import write_characteristics
from dovetail.report.summary import Provenance


def read(document: Mapping[str, Any]) -> Characteristics:
    """What `Characteristics.to_json` wrote, but for the load of the host."""
    found = tuple(map(one, document["characteristics"]))
    return Characteristics(document["subject"], document["ranks"], document["aspect"], found, document["facts"])


def one(row: Mapping[str, Any]) -> Characteristic:
    cuts = tuple(Cut(**{**cut, "dil": Ratio(**cut["dil"])}) for cut in row["cuts"])
    beside = tuple(
        Beside(**{**each, "compute": Ratio(**each["compute"]), "net": Ratio(**each["net"]) if each["net"] else None})
        for each in row["beside"]
    )
    about = {key: row[key] for key in ("title", "sizes", "flops", "num_bytes", "shape", "rounds", "disturbed")}
    return Characteristic(**about, whole=Ratio(**row["whole_s"]), cuts=cuts, beside=beside)


def main() -> None:
    results, out = map(Path, sys.argv[1:])
    sections = json.loads(results.read_text())["sections"]
    rows = [row for name in ("pieces", "beside") for row in sections.get(name, {"rows": []})["rows"]]
    for way in dict.fromkeys(row["name"] for row in rows if "characteristics" in row):
        parts = [read(row["characteristics"]) for row in rows if row["name"] == way]
        every = Characteristics(**{**vars(parts[0]), "found": tuple(each for part in parts for each in part.found)})
        name = out if way == "alone" else out.with_stem(f"{out.stem}-{way.replace(' ', '-')}")
        write_characteristics(name, every, Provenance(f"bench/gpu/plots.py {results.name}", every.facts["device"], ""))


if __name__ == "__main__":
    main()
