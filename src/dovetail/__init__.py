"""Dovetail hides communication behind computation."""

__version__ = "0.1.0"
