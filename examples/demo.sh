#!/usr/bin/env bash
# Tunes one operator: on two testbed hosts where this machine can have them, else on shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
testbed="bench/testbed/testbed --name demo"
if $testbed check >/dev/null 2>&1; then
    echo "==> two hosts (network namespaces) joined by a 1 Gbit/s link"
    trap '$testbed down >/dev/null' EXIT
    $testbed up 2 1gbit >/dev/null
    DOVETAIL_LAUNCH=$($testbed launcher)
    export DOVETAIL_LAUNCH
else
    echo "==> two ranks on shared memory: $($testbed check 2>&1 | tail -n 1)"
fi
dovetail tune matmul_all_reduce --m 4096 --k 4096 --n 1024 --ranks 2 --out demo "$@"
