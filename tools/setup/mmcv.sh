# shellcheck shell=bash
# mmcv has no ready wheel: it is built here, once for each kind, and kept.

has_ops() {
    # Of a wheel, or of the installed mmcv where none is named.
    [ -n "$("$PYTHON" "$ASK" ops "$@")" ]
}

torch_version() {
    # The one that is installed, or that will be.
    local torch
    torch=$("$PYTHON" "$ASK" version torch)
    echo "${torch:-$("$PYTHON" "$ASK" pin torch)}"
}

wheel_folder() {
    # $1: kind, 'ops' or 'python'. One folder for all that makes a difference:
    # pip's own cache cannot tell a wheel with operators from one without.
    local mmcv tag
    mmcv=mmcv-$("$PYTHON" "$ASK" pin onedl-mmcv)
    if [ "$1" = python ]; then
        echo "$MIM_CACHE/wheels/$mmcv-python"
        return
    fi
    tag=$("$PYTHON" -c 'import sys, sysconfig
print("cp%d%d-" % sys.version_info[:2] + sysconfig.get_platform())')
    [ "${FORCE_CUDA:-0}" = 0 ] || tag=$tag-cuda
    echo "$MIM_CACHE/wheels/$mmcv-ops-torch$(torch_version)-$tag"
}

kept_wheel() {
    find "$(wheel_folder "$1")" -name '*.whl' 2>/dev/null | head -n 1
}

install_mmcv() {
    # $1: profile. An mmcv that serves is kept, upstream's included.
    local kind=python upstream
    [ "$1" = pretrain ] || kind=ops
    upstream=$("$PYTHON" "$ASK" version mmcv)
    upstream=${upstream:-$("$PYTHON" "$ASK" version mmcv-lite)}
    if [ "$kind" = ops ]; then
        if has_ops; then return; fi
        [ -z "$upstream" ] || stop "mmcv $upstream in $ENV_DIR has no" \
            "compiled operators (mmcv.ops), which the tests need. Reinstall" \
            "it with them, or use another environment."
    elif [ -n "$upstream" ] || [ "$("$PYTHON" "$ASK" version onedl-mmcv)" = \
        "$("$PYTHON" "$ASK" pin onedl-mmcv)" ]; then
        return
    fi
    [ -n "$(kept_wheel $kind)" ] || build_mmcv $kind
    if [ -n "$("$PYTHON" "$ASK" version onedl-mmcv)" ]; then
        pip_install --quiet --force-reinstall --no-deps "$(kept_wheel $kind)"
    else
        pip_install --quiet -c "$PINS" "$(kept_wheel $kind)"
    fi
}

build_mmcv() {
    # Builds in a folder of its own; only a finished wheel is moved to where
    # later runs look.
    local kind=$1 folder work mmcv
    folder=$(wheel_folder "$kind")
    mmcv=onedl-mmcv==$("$PYTHON" "$ASK" pin onedl-mmcv)
    rm -rf "$MIM_CACHE"/build.*
    work=$(mktemp -d "$MIM_CACHE/build.XXXXXX")
    mkdir "$work/tmp" "$work/wheel"
    if [ "$kind" = ops ]; then
        compile_mmcv "$work" "$mmcv"
        has_ops "$work"/wheel/*.whl || stop "mmcv was built without its" \
            "operators; $STATE/pip.log says why."
    else
        say "Building $mmcv without compiled operators (some seconds)."
        # Isolated from the environment the build finds no torch, and so
        # compiles nothing.
        TMPDIR=$work/tmp run_pip wheel --quiet --no-cache-dir --no-deps \
            --wheel-dir "$work/wheel" "$mmcv"
    fi
    mkdir -p "$folder"
    mv "$work"/wheel/*.whl "$folder/"
    rm -rf "$work"
}

compile_mmcv() {
    local work=$1 mmcv=$2 watcher
    # mmcv asks for C++17; where two standards are given the last one counts.
    printf '#!/bin/sh\nexec %s "$@" -std=%s\n' "${CXX:-c++}" \
        "$(cxx_standard "$(torch_version)")" >"$work/cxx"
    chmod +x "$work/cxx"
    say "Compiling the operators of $mmcv, once for this Python and torch" \
        "(8 minutes on two cores)."
    watch_build "$work" $$ &
    watcher=$!
    (
        export TMPDIR=$work/tmp CXX=$work/cxx
        export MAX_JOBS=${MAX_JOBS:-$(jobs_that_fit)}
        # For the tests CPU operators do; a GPU without nvcc would stop the
        # build.
        [ "${FORCE_CUDA:-0}" != 0 ] || export CUDA_VISIBLE_DEVICES=
        export PATH="$ENV_DIR/bin:$PATH" # ninja
        run_pip wheel --quiet --no-cache-dir --no-deps --no-build-isolation \
            --wheel-dir "$work/wheel" "$mmcv"
    ) || {
        kill "$watcher" 2>/dev/null || true
        exit 1
    }
    kill "$watcher" 2>/dev/null || true
}

watch_build() {
    # A line every 30 seconds, for as long as the folder and the script live.
    local work=$1 script=$2 start=$SECONDS next=30 compiled all
    exec 9>&- # the lock is not this process's to hold
    while [ -d "$work" ] && kill -0 "$script" 2>/dev/null; do
        sleep 1
        [ $((SECONDS - start)) -ge $next ] || continue
        next=$((next + 30))
        compiled=$(find "$work" -name '*.o' 2>/dev/null | wc -l)
        # CPU sources; the build folder holds copies of them
        all=$(find "$work" -name '*.cpp' -not -path '*/build/*' 2>/dev/null |
            grep -cE '/csrc/pytorch/(cpu/)?[^/]+$') || all=all
        say "  $((SECONDS - start)) s: $compiled of $all files compiled"
    done
}

jobs_that_fit() {
    # A compiler process takes up to 1 GB.
    local cores memory
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null) || cores=2
    memory=$(awk '/MemAvailable/ { print int($2 / 1048576) }' \
        /proc/meminfo 2>/dev/null) || memory=$cores
    [ "$memory" -ge 1 ] || memory=1
    if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}
