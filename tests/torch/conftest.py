"""The native group of PyTorch, compiled before tests with a time limit start ranks."""

import subprocess
import sys

import needs
import pytest


@pytest.fixture(scope="session", autouse=True)
def native_group():
    """Compile it into the usual cache, once; both workers wait for it. A slow machine takes two minutes."""
    if needs.missing("torch") is None and needs.missing("compiler") is None:
        code = "import dovetail.torch.native as native; assert native.native_group() is not None"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=280)
