"""Write a bill of materials (CycloneDX 1.5) beside each wheel of a folder: `python tools/sbom.py dist`.

It names what the wheel contains (our code, and the projects of NOTICE that are compiled in) and what it requires.
"""

from __future__ import annotations

import json
import re
import sys
from email import message_from_bytes
from email.message import Message
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

COMPILED = re.compile(r"^--- (\S+) \((\S+)\), (\S+)$", re.MULTILINE)  # a project of NOTICE
LICENCES = {"MIT", "BSD-3-Clause", "Apache-2.0"}


def bill(wheel: Path) -> dict[str, Any]:
    """Return a wheel's bill: its component, those compiled in, and its requirements, with their conditions."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        known = message_from_bytes(archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))))
        notice = archive.read(next(n for n in names if n.endswith("/NOTICE"))).decode()
        libraries = sorted(n for n in names if re.search(r"\.so(\.|$)", n))
        hashes = {n: sha256(archive.read(n)).hexdigest() for n in libraries}
    main = _component(str(known["Name"]), str(known["Version"]), str(known["License-Expression"]))
    main |= {"hashes": [{"alg": "SHA-256", "content": sha256(wheel.read_bytes()).hexdigest()}]}
    inside = [_compiled(*found) for found in COMPILED.findall(notice)] + [_file(n, hashes[n]) for n in libraries]
    needed = list(_requirements(known))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": inside + needed,
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": [each["bom-ref"] for each in inside + needed]}],
    }


def _component(name: str, version: str, licence: str) -> dict[str, Any]:
    ref = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": ref,
        "licenses": [{"license": {"id": licence}}],
    }


def _compiled(name: str, home: str, licence: str) -> dict[str, Any]:
    """Return a project whose code is compiled into the module."""
    assert licence in LICENCES, f"{name}: {licence} is no SPDX name known here"
    found = {"type": "library", "bom-ref": f"compiled:{name}", "name": name, "scope": "required"}
    return found | {
        "licenses": [{"license": {"id": licence}}],
        "externalReferences": [{"type": "website", "url": home}],
    }


def _file(name: str, digest: str) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": hashes}


def _requirements(known: Message) -> list[dict[str, Any]]:
    """Return what pip installs with the wheel; "optional": only with an extra."""
    found: dict[str, dict[str, Any]] = {}
    for line in known.get_all("Requires-Dist") or ():
        wanted, _, condition = line.partition(";")
        name = re.match(r"[\w.-]+", wanted)
        assert name is not None, line
        scope = "optional" if "extra" in condition else "required"
        ref = f"pkg:pypi/{name[0].lower().replace('_', '-')}"
        row = {"type": "library", "bom-ref": ref, "name": name[0], "purl": ref, "scope": scope}
        row["properties"] = [{"name": "requirement", "value": line.strip()}]
        if ref not in found or scope == "required":
            found[ref] = row
    return list(found.values())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path in sorted(folder.glob("*.whl")):
        target = folder / f"{path.stem}.cdx.json"
        target.write_text(json.dumps(bill(path), indent=1) + "\n", encoding="utf-8")
        print(target)
