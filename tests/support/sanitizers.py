"""Flags of the compiler for each sanitizer."""

from __future__ import annotations

THREAD = ["-O1", "-g1", "-fsanitize=thread", "-fno-sanitize-recover=all"]
ADDRESS = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
