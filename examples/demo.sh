#!/usr/bin/env bash
# Tunes one operator, sized to the machine: on two testbed hosts where there can be such, else on shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
testbed="tools/testbed/testbed --name demo"
if why=$($testbed up 2 1gbit 2>&1 >/dev/null); then
    trap '$testbed down >/dev/null' EXIT
    DOVETAIL_LAUNCH=$($testbed launcher)
    export DOVETAIL_LAUNCH
    echo "==> two hosts (network namespaces) joined by a 1 Gbit/s link"
else
    echo "==> two ranks on shared memory, for hosts cannot be made here: $(head -n 1 <<<"$why")"
fi
dovetail tune matmul_all_reduce --ranks 2 --out demo "$@"
echo "==> open demo/report.html; . .venv/bin/activate gives you the command dovetail"
