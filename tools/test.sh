#!/usr/bin/env bash
# Set up everything, mmcv's compiled operators included, then run the tests.
#
#     bash tools/test.sh [--upstream] [arguments of pytest]
#
# Without arguments: the fast tier. --full adds the slow one. Paths are
# relative to the repository. See tools/setup.sh for the environment that is
# used or made.
#
# --upstream, as the first argument, tests pre-training with the last releases
# of upstream's mmengine, mmcv-lite and mmpretrain in place of the maintained
# forks; without further arguments, the files that tools/setup/upstream.sh
# names.
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
if [ "${1:-}" = --upstream ]; then
    shift
    prepare_upstream
    [ $# -gt 0 ] || set -- "${UPSTREAM_TESTS[@]}"
fi

cd "$MIM_ROOT"
export OMP_NUM_THREADS=1
exec "$PYTHON" -m pytest --durations=10 "$@"
