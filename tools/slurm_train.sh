#!/usr/bin/env bash
# Train under Slurm.
#
#     bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR \
#         [arguments of tools/train.py]
#
# Variables: GPUS (all of them, 8), GPUS_PER_NODE (8), CPUS_PER_TASK (5),
# SRUN_ARGS (further arguments of srun; --gres=none on machines without GPUs,
# where GPUS counts processes).
set -euo pipefail

# shellcheck source=tools/setup/launch.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup/launch.sh"
if [ $# -lt 4 ]; then
    usage "$0" >&2
    exit 2
fi
launch_slurm "$1" "$2" train.py "$3" --work-dir="$4" "${@:5}"
