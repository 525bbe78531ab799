"""rank: the command of each rank without MPI: `python -m dovetail.run.shared.rank JOB_FOLDER [TRACE_FOLDER]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dovetail.run.mpi.rank import use_own_cores
from dovetail.run.ranks.heartbeat import Pulse

if __name__ == "__main__":
    use_own_cores()
    with Pulse(Path(sys.argv[1]), os.environ["DOVETAIL_RANK"]) as pulse:
        from dovetail.run.ranks.worker import serve
        from dovetail.run.shared.world import world

        code = serve(sys.argv[1], world().world, pulse, *sys.argv[2:])
    sys.exit(code)
