"""Fuzz every reader of files in this process: `python tools/fuzz.py --minutes 5 [--only msccl] [--seed 1]`.

Valid samples, of our own writers, are damaged at random. A reader must return, or raise DovetailError, within LIMIT_S;
anything else is a defect: its input is kept in build/fuzz, and the exit code is 1. Prints inputs tried, by reader, also
when it is interrupted.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.collective import build
from dovetail.collective.msccl import read as read_msccl
from dovetail.collective.msccl import write as write_msccl
from dovetail.collective.mscclpp import read as read_mscclpp
from dovetail.collective.mscclpp import write as write_mscclpp
from dovetail.core import DovetailError
from dovetail.cost import Curve, price
from dovetail.ir import Program, Slot, Workload, to_text, verify
from dovetail.ir.text.parse import parse
from dovetail.machine import Fault, Machine, load
from dovetail.machine.topology_xml import read_topology
from dovetail.sim import simulate
from dovetail.timeline import Timeline
from dovetail.trace.exchange.chrome import read_chrome
from dovetail.trace.exchange.tlog import RECORD, read_tlog
from dovetail.trace.process_file import read_process
from dovetail.trace.schedules.chakra import read_chakra
from dovetail.trace.schedules.goal import read_goal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
import chakra_files as chakra  # noqa: E402
from trace_files import event, write_process  # noqa: E402

LIMIT_S = 5
ODD: tuple[Any, ...] = (-1, 0, 1, 2**31, 2**63, 2**70, 1e308, float("nan"), None, "", "x", [], {}, [[]], True, -0.5)
TOKENS = (b"-1", b"0", b"99999999999999999999", b"1e999", b"\x00", b"\xff\xff\xff\xff", b"<", b'"', b"]", b"{", b"\n")
GOAL = b"""num_ranks 2
rank 0 {
l1: calc 10
l2: send 8b to 1 tag 3
l2 requires l1
}
rank 1 {
l1: recv 8b from 0 tag 3
}
"""
CORE = b'<object type="Core"><object type="PU"/></object>'
HWLOC = b'<topology><object type="Machine"><object type="Package">' + 2 * CORE + b"</object></object></topology>"
PCI = b'<pci busid="%b" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="%b" sm="80">%b</gpu></pci>'
NVLINK = b'<nvlink target="b" count="12" tclass="0x030200"/>'
NCCL = b'<system version="1"><cpu>' + PCI % (b"a", b"0", NVLINK) + PCI % (b"b", b"1", b"") + b"</cpu></system>"
CHROME = (
    b'[{"ph":"X","pid":0,"tid":0,"ts":1.0,"dur":2.0,"name":"MPI_Send","args":{"bytes":8,"peer":1}},'
    b'{"ph":"B","pid":1,"ts":2,"name":"a"},{"ph":"E","pid":1,"ts":3}]'
)
TLOG = np.array([(0, 10, 0, 1, 0.5), (0, 11, 0, 1, 0.6), (1, 31, 2, 3, 0.7), (1, 2, 0, 0, 0.9)], RECORD).tobytes()

Reader = tuple[list[bytes], Callable[[bytes], Any]]


def readers(place: Path) -> dict[str, Reader]:
    """Return samples and a function of each reader; those that read a path get one in `place`."""
    program = build("ring_all_reduce", 2)
    machine = load("shared-memory-2")
    slots = Workload({buffer.name: (Slot((4,), "float32"),) * 2 for buffer in program.buffers})
    timeline = simulate(program, price(program, machine, slots, extrapolate=True))

    def at_path(read: Callable[[Any], Any], name: str = "input", many: bool = False) -> Callable[[bytes], Any]:
        def run(content: bytes) -> Any:
            path = place / name
            path.write_bytes(content)
            return read([path] if many else path)

        return run

    def document(of: Callable[[Any], Any]) -> Callable[[bytes], Any]:
        return lambda content: of(json.loads(content))

    def written(value: Any) -> bytes:
        return json.dumps(value.to_json()).encode()

    curve = json.dumps(next(iter(machine.costs.values()))).encode()
    machines = [written(machine), written(load("torus-2x2"))]
    record = write_process(place / "run", 0, {1: [event("point", 10**7, 3, 4)]}, capacity=8).read_bytes()
    return {
        "text": ([to_text(program).encode()], lambda content: verify(parse(content.decode()))),
        "program": ([written(program)], document(lambda each: verify(Program.from_json(each)))),
        "machine": (machines, document(Machine.from_json)),
        "curve": ([curve], document(Curve.from_json)),
        "timeline": ([written(timeline)], document(Timeline.from_json)),
        "msccl": ([write_msccl(program, "msccl").encode()], read_msccl),
        "mscclpp": ([json.dumps(write_mscclpp(program)).encode()], read_mscclpp),
        "topology": ([HWLOC, NCCL], at_path(read_topology)),
        "goal": ([GOAL], at_path(read_goal)),
        "chakra": ([_chakra(place)], at_path(read_chakra, "input.0.et", many=True)),
        "chrome": ([CHROME], at_path(read_chrome, many=True)),
        "tlog": ([TLOG], at_path(read_tlog)),
        "process": ([record], at_path(read_process)),
        "fault": ([b"link:3-4", b"rank:5"], lambda content: Fault.parse(content.decode())),
    }


def _chakra(place: Path) -> bytes:
    """Return a trace of one rank: two computations, one after the other, and a collective."""
    one, other = chakra.node(1, 4, micros=10, is_cpu_op=True), chakra.node(2, 2, after=(1,), micros=5)
    call = chakra.node(3, 7, after=(2, 1), comm_size=64, comm_type=0, pg_name="", scale=0.5)
    (place / "sample").mkdir()
    return chakra.chakra(place / "sample", [one, other, call]).read_bytes()


def damaged(sample: bytes, rng: random.Random) -> bytes:
    """Return a sample with one to four damages; JSON is damaged as a document half of the time."""
    if sample[:1] in b"{[" and rng.random() < 0.5:
        value = json.loads(sample)
        for _ in range(rng.randint(1, 3)):
            _damage_document(value, rng)
        return json.dumps(value).encode()
    content = bytearray(sample)
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del content[at : min(to, at + 40)]
        elif kind == 2:
            content[at:at] = content[at : min(to, at + 60)]
        elif kind == 3:
            content[at : at + rng.randrange(3)] = rng.choice(TOKENS)
        else:
            del content[at + rng.randrange(1 + len(content) - at) :]
    return bytes(content)


def _damage_document(value: Any, rng: random.Random) -> None:
    """Replace, remove or add one entry at a random depth."""
    while isinstance(value, dict | list) and value:
        key = rng.choice([*value]) if isinstance(value, dict) else rng.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
            value = value[key]
            continue
        if rng.random() < 0.2:
            del value[key]
        else:
            value[key] = deepcopy(rng.choice(ODD))  # it may be damaged next
        return


def tried(read: Callable[[bytes], Any], content: bytes) -> str:
    """Read damaged content; return what is wrong with how that ended, "" if nothing."""
    signal.alarm(LIMIT_S)
    try:
        read(content)
    except DovetailError:
        return ""
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        return "" if "json" in type(error).__module__ or isinstance(error, UnicodeDecodeError) else "RecursionError"
    except Exception:
        return traceback.format_exc(limit=-3)
    finally:
        signal.alarm(0)
    return ""


def check_samples(known: dict[str, Reader]) -> None:
    """Read every sample undamaged: the damage to one that is refused at once would show nothing."""
    for samples, read in known.values():
        for sample in samples:
            read(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", help="a reader")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _too_long)
    rng, counts, wrong = random.Random(args.seed), Counter[str](), dict[str, tuple[str, bytes]]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        known = {name: each for name, each in readers(Path(place)).items() if args.only in (None, name)}
        check_samples(known)
        end = time.monotonic() + 60 * args.minutes
        with suppress(KeyboardInterrupt):
            while time.monotonic() < end:
                for name, (samples, read) in known.items():
                    content = damaged(rng.choice(samples), rng)
                    fault = tried(read, content)
                    counts[name] += 1
                    if fault and (key := f"{name}: {fault.strip().splitlines()[-1]}"[:100]) not in wrong:
                        wrong[key] = fault, content
    for number, (key, (fault, content)) in enumerate(wrong.items()):
        (ROOT / "build" / "fuzz").mkdir(parents=True, exist_ok=True)
        (ROOT / "build" / "fuzz" / f"{number}-{key.split(':')[0]}").write_bytes(content)
        print(f"\n{key}\n{fault}")
    print(f"{counts.total()} inputs", dict(counts), f"{len(wrong)} kinds of defects", sep="\n")
    sys.exit(bool(wrong))


def _too_long(*about: object) -> None:
    raise TimeoutError(f"still reading after {LIMIT_S} s")


if __name__ == "__main__":
    main()
