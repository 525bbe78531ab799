"""cli: the verbs of the command `dovetail`. Reads argv, prints, and chooses exit codes; other packages do the rest."""

from dovetail.cli.app import main

__all__ = ["main"]
