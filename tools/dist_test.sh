#!/usr/bin/env bash
# Evaluate a checkpoint with several processes, one for each GPU (or with gloo
# on the CPU, where there is no CUDA).
#
#     bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]
#
# Several machines: run it on each, GPUS being the number on one machine, with
#     NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 PORT=29500
# (NODE_RANK counts the machines from 0; the other three are the same on all).
set -euo pipefail

# shellcheck source=tools/setup/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup/launch.sh"
if [ $# -lt 3 ]; then
    usage "$0" >&2
    exit 2
fi
launch_torchrun "$3" test.py "$1" "$2" "${@:4}"
