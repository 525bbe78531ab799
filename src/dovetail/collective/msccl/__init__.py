"""msccl: read, prove and write MSCCL XML in its three dialects (msccl, Azure's executor, RCCL)."""

from dovetail.collective.msccl.certify import certify, safe_up_to_bytes
from dovetail.collective.msccl.parts import DIALECTS, FIFO_DEPTHS, WORDS, Header, MscclFile, Use
from dovetail.collective.msccl.read import read
from dovetail.collective.msccl.write import Written, write, write_file

__all__ = [
    "DIALECTS",
    "FIFO_DEPTHS",
    "WORDS",
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
