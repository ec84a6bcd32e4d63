#!/usr/bin/env bash
# Set up what pre-training needs, then show it at work on generated pictures:
# data, training, k-NN, pictures of both, work_dirs/demo/summary.json.
#
#     bash tools/demo.sh [arguments of tools/demo.py]
#
# See tools/setup.sh for the environment that is used or made.
set -euo pipefail

MIM_STARTED=$(date +%s) # the summary counts the set-up too
export MIM_STARTED
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case ${1:-} in
    -h | --help)
        usage "$0"
        exit
        ;;
esac
prepare_environment pretrain

cd "$MIM_ROOT"
# Threads that wait in a loop stall a small model beside any other busy job.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
exec "$PYTHON" tools/demo.py "$@"
