#!/usr/bin/env bash
# Shows what works on this machine.
set -euo pipefail
dovetail doctor
