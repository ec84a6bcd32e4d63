#!/usr/bin/env bash
# Set up everything, mmcv's compiled operators included, then run the tests.
#
#     bash tools/test.sh [arguments of pytest]
#
# Without arguments: the fast tier. --full adds the slow one. Paths are
# relative to the repository. See tools/setup.sh for the environment that is
# used or made.
set -euo pipefail

# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
case ${1:-} in
    -h | --help)
        usage "$0"
        exit
        ;;
esac
prepare_environment test

cd "$MIM_ROOT"
export OMP_NUM_THREADS=1
exec "$PYTHON" -m pytest --durations=10 "$@"
