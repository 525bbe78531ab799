"""needed: imports PyTorch; where it is missing, the error says how to get it."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("dovetail.torch needs PyTorch: pip install 'dovetail[torch]'", name="torch") from error
