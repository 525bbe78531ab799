"""Executes the jobs of a pickle by the MPI of the Python that runs it; leaves their results, or errors, in another."""

import pickle
import sys
from pathlib import Path

from dovetail.run.mpi.executor import MpiExecutor


def main(path: str, answer: str) -> None:
    found = []
    for job, ranks, verified in pickle.loads(Path(path).read_bytes()):
        executor = MpiExecutor(folder=Path(answer).parent / "jobs")
        try:
            found.append((executor.execute if verified else executor.execute_unverified)(job, ranks))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    Path(answer).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
