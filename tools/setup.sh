# shellcheck shell=bash
# Set-up shared by demo.sh and test.sh: a Python environment, filled once.
#
#     source tools/setup.sh
#     prepare_environment pretrain|test      # leaves the interpreter in PYTHON
#
# The environment is the active one (a venv, or a conda environment other than
# base), else .venv in the repository. Where nothing changed since the last
# time, a call takes a second.
#
# Variables that a user may set:
#   MIM_PYTHON   interpreter to make .venv with (default: the first of python3,
#                python3.12, python3.11, python3.10 that is supported)
#   MIM_CACHE    where wheels of mmcv are kept (default: ~/.cache/mim_plugins)
#   FORCE_CUDA   1: compile mmcv's operators for CUDA as well (needs nvcc)
#
# Files in the environment's folder .mim_plugins:
#   owned            the environment was made here and may be made afresh
#   installing       pip is at work, or was when the set-up broke off
#   pretrain, test   all is installed; a hash of what that depends on
#   upstream/        another environment, see tools/setup/upstream.sh

MIM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MIM_CACHE=${MIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mim_plugins}
ASK=$MIM_ROOT/tools/setup/environment.py

# shellcheck source=tools/setup/checks.sh
source "$MIM_ROOT/tools/setup/checks.sh"
# shellcheck source=tools/setup/mmcv.sh
source "$MIM_ROOT/tools/setup/mmcv.sh"
# shellcheck source=tools/setup/upstream.sh
source "$MIM_ROOT/tools/setup/upstream.sh"

prepare_environment() {
    local profile=$1 files key
    case $profile in
        pretrain) files='torch build mm runtime' ;;
        test) files='torch build mm runtime downstream huggingface test' ;;
        *) stop "there is no set-up '$profile', only pretrain and test." ;;
    esac
    trap interrupted INT TERM
    lock
    choose_environment
    # shellcheck disable=SC2086  # a list of names
    key=$("$PYTHON" "$ASK" key $files)
    if [ -e "$STATE/installing" ] || [ ! -e "$STATE/$profile" ] ||
        [ "$(cat "$STATE/$profile")" != "$key" ]; then
        rm -f "$STATE/$profile"
        fill_environment "$profile" "$files"
        # shellcheck disable=SC2086
        "$PYTHON" "$ASK" key $files >"$STATE/$profile"
    fi
    say "Ready: $ENV_DIR"
    exec 9>&-
    trap - INT TERM
}

interrupted() {
    trap - INT TERM
    printf '\n[setup] Interrupted. The next run mends what is half done.\n' >&2
    exit 130
}

lock() {
    # Two set-ups at once, a demo's and a test's, would tread on each other.
    if ! mkdir -p "$MIM_CACHE" 2>/dev/null || [ ! -w "$MIM_CACHE" ]; then
        stop "$MIM_CACHE cannot be written to. Set MIM_CACHE to a folder" \
            "that can."
    fi
    exec 9>"$MIM_CACHE/lock"
    command -v flock >/dev/null || return 0
    flock -n 9 && return
    say 'Another set-up is running; this one waits for it.'
    flock 9
}

# --- which environment ------------------------------------------------------

choose_environment() {
    ENV_DIR=$(active_environment)
    if [ -z "$ENV_DIR" ]; then
        ENV_DIR=$MIM_ROOT/.venv
        open_venv
    fi
    PYTHON=$ENV_DIR/bin/python
    STATE=$ENV_DIR/.mim_plugins
    is_supported "$PYTHON" || stop "the environment $ENV_DIR has Python" \
        "$(python_version "$PYTHON" || echo '(none that runs)'), and 3.10," \
        "3.11 or 3.12 is needed. Deactivate or remove it, or activate another."
    if ! mkdir -p "$STATE" 2>/dev/null || [ ! -w "$STATE" ]; then
        stop "$ENV_DIR cannot be written to. Deactivate it, or activate" \
            "another."
    fi
    # What a user installed in an environment of theirs stays.
    KEEP=''
    [ -e "$STATE/owned" ] || KEEP=--keep
}

open_venv() {
    # A .venv that was made here is made afresh when it is half done or its
    # Python is not the one to use; one that a user made is left alone.
    local state=$ENV_DIR/.mim_plugins reason='' python=$ENV_DIR/bin/python
    if [ -e "$state/owned" ]; then
        if [ -e "$state/installing" ]; then
            reason='an earlier set-up broke off'
        elif ! is_supported "$python"; then
            reason='its Python does not run any more'
        elif [ -n "${MIM_PYTHON:-}" ] && [ "$(python_version "$python")" != \
            "$(python_version "$MIM_PYTHON")" ]; then
            reason='MIM_PYTHON names another Python'
        fi
    fi
    if [ -n "$reason" ]; then
        find_python
        say "Making .venv afresh: $reason."
        rm -rf "$ENV_DIR"
    fi
    [ -d "$ENV_DIR" ] || make_venv
}

make_venv() {
    local state=$ENV_DIR/.mim_plugins version message
    find_python
    check_space yes
    version=$(python_version "$BASE_PYTHON")
    say "Making .venv with $BASE_PYTHON (Python $version)."
    mkdir -p "$state"
    touch "$state/owned" "$state/installing"
    message=$("$BASE_PYTHON" -m venv "$ENV_DIR" 2>&1) ||
        explain_venv "$version" "$message"
    rm "$state/installing"
}

# --- what goes into it ------------------------------------------------------

run_pip() {
    local log=$STATE/pip.log
    rm -f "$log"
    PIP_USER=0 "$PYTHON" -m pip --disable-pip-version-check --no-input \
        --log "$log" "$@" && return
    if ! grep -q 'Installing collected packages' "$log" 2>/dev/null; then
        rm -f "$STATE/installing" # nothing was touched
    fi
    explain_pip "$log"
}

pip_install() {
    touch "$STATE/installing"
    run_pip install "$@"
    rm -f "$STATE/installing"
}

fill_environment() {
    local profile=$1 files=$2 list=$STATE/wanted.txt quiet=''
    PINS=$STATE/constraints.txt
    "$PYTHON" -m pip --version >/dev/null 2>&1 || stop "$ENV_DIR has no" \
        "pip. Run: $PYTHON -m ensurepip"
    if [ -n "$("$PYTHON" "$ASK" version torch)" ]; then
        check_space no
        quiet=--quiet
    else
        check_space yes
        say 'Installing torch; up to 3 GB are downloaded.'
    fi
    if [ "$profile" = test ] && ! has_ops && [ -z "$(kept_wheel ops)" ]; then
        check_compiler "$(torch_version)"
    fi
    if [ -e "$STATE/installing" ]; then
        say 'An earlier set-up broke off; what it left half done goes first.'
        "$PYTHON" "$ASK" forget "$STATE/installing"
    fi

    "$PYTHON" "$ASK" constraints ${KEEP:+"$KEEP"} >"$PINS"
    "$PYTHON" "$ASK" wanted ${KEEP:+"$KEEP"} torch build >"$list"
    pip_install ${quiet:+"$quiet"} -r "$list" -c "$PINS"
    install_mmcv "$profile"
    # shellcheck disable=SC2086  # a list of names
    "$PYTHON" "$ASK" wanted ${KEEP:+"$KEEP"} $files >"$list"
    say 'Installing the OpenMMLab libraries and what else is needed.'
    pip_install --quiet -r "$list" -c "$PINS"
    pip_install --quiet --no-deps --no-build-isolation --editable "$MIM_ROOT"
    try_imports "$profile"
}

try_imports() {
    local modules='torch, torchvision, mmengine, mmcv, mmpretrain' message
    [ "$1" = pretrain ] || modules="$modules, mmcv.ops, mmseg, mmdet.models"
    say 'Importing all of it once.'
    message=$(cd / && "$PYTHON" -W ignore -c "import $modules" 2>&1) ||
        explain_import "$(tail -n 1 <<<"$message")"
}
