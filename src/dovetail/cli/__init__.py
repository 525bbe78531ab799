"""cli: the verbs of the command `dovetail`. Reads argv, prints, chooses exit codes; all else is done downhill."""

from dovetail.cli.app import main

__all__ = ["main"]
