# shellcheck shell=bash
# Start a tool in several processes: shared by dist_*.sh and slurm_*.sh.

MIM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tools/setup/checks.sh
source "$MIM_ROOT/tools/setup/checks.sh"

find_interpreter() {
    # Leaves in PYTHON the active environment's Python, else .venv's, else the
    # one on PATH.
    local environment
    environment=$(active_environment)
    environment=${environment:-$MIM_ROOT/.venv}
    if [ -x "$environment/bin/python" ]; then
        PYTHON=$environment/bin/python
    else
        PYTHON=$(command -v python || command -v python3) ||
            stop 'no Python was found. Run bash tools/demo.sh once, or' \
                'activate an environment.'
    fi
}

check_number() {
    # $1: name, $2: value.
    case $2 in
        '' | *[!0-9]* | 0)
            stop "$1 must be a positive number, not '$2'."
            ;;
    esac
}

launch_torchrun() {
    # $1: processes on this machine, $2: tool, then its arguments.
    local processes=$1 tool=$2
    shift 2
    check_number GPUS "$processes"
    find_interpreter
    exec "$PYTHON" "$MIM_ROOT/tools/setup/torchrun.py" \
        --nnodes="${NNODES:-1}" \
        --node_rank="${NODE_RANK:-0}" \
        --master_addr="${MASTER_ADDR:-127.0.0.1}" \
        --master_port="${PORT:-29500}" \
        --nproc_per_node="$processes" \
        "$MIM_ROOT/tools/$tool" "$@" --launcher=pytorch
}

launch_slurm() {
    # $1: partition, $2: job's name, $3: tool, then its arguments.
    local partition=$1 job=$2 tool=$3 more=()
    local gpus=${GPUS:-8} each=${GPUS_PER_NODE:-8}
    shift 3
    check_number GPUS "$gpus"
    check_number GPUS_PER_NODE "$each"
    [ "$each" -le "$gpus" ] || each=$gpus
    find_interpreter
    read -ra more <<<"${SRUN_ARGS:-}"
    exec srun --partition="$partition" --job-name="$job" \
        --gres=gpu:"$each" --ntasks="$gpus" --ntasks-per-node="$each" \
        --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
        ${more[@]+"${more[@]}"} \
        "$PYTHON" -u "$MIM_ROOT/tools/$tool" "$@" --launcher=slurm
}
