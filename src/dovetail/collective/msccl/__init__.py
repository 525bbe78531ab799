"""msccl: MSCCL XML in its three dialects (msccl, Azure's executor, RCCL), read, proved and written."""

from dovetail.collective.msccl.certify import certify, safe_up_to_bytes
from dovetail.collective.msccl.parts import COLLECTIVES, DIALECTS, FIFO_DEPTHS, Header, MscclFile, Use
from dovetail.collective.msccl.read import read
from dovetail.collective.msccl.write import Written, write, write_file

__all__ = [
    "COLLECTIVES",
    "DIALECTS",
    "FIFO_DEPTHS",
    "Header",
    "MscclFile",
    "Use",
    "Written",
    "certify",
    "read",
    "safe_up_to_bytes",
    "write",
    "write_file",
]
