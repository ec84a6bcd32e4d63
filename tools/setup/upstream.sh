# shellcheck shell=bash
# A second environment, in which upstream's mmengine, mmcv and mmpretrain take
# the place of the forks. All else, torch above all, is linked from the first:
# it takes seconds and 30 MB. It lies in the first one's .mim_plugins/upstream.

# What these libraries can change, in two and a half minutes: modules built
# from theirs, registries, what their Runner calls, files that they read, a run
# from the command line. Transforms and metrics are numpy's and torch's alone;
# keys of a config, channels, the cost of a step and what becomes of a loss
# that is not finite are this package's own.
# shellcheck disable=SC2034  # read in test.sh
UPSTREAM_TESTS=(
    tests/test_compat.py
    tests/test_registries.py
    tests/models
    tests/golden
    tests/checkpoints
    tests/datasets/test_view_dataset.py
    tests/engine
    --ignore=tests/engine/test_channels.py
    --ignore=tests/engine/test_config_keys.py
    --ignore=tests/engine/test_no_sync.py
    --ignore=tests/engine/test_non_finite.py
    tests/evaluation/test_hooks.py
    tests/evaluation/test_loops.py
    tests/tools/test_train.py::test_a_run_logs_checkpoints_and_evaluates
    tests/tools/test_train.py::test_resume_goes_on_from_the_newest_checkpoint
)

prepare_upstream() {
    # After prepare_environment test; leaves the interpreter in PYTHON.
    local folder=$STATE/upstream key
    trap interrupted INT TERM
    lock
    key=$("$PYTHON" "$ASK" key upstream)
    if [ "$(cat "$folder/key" 2>/dev/null)" != "$key" ]; then
        say "Making an environment with upstream's libraries (some seconds)."
        rm -rf "$folder"
        make_upstream "$folder"
        echo "$key" >"$folder/key"
    fi
    # What the tests start finds this environment too.
    export VIRTUAL_ENV=$folder
    PYTHON=$folder/bin/python
    say "Ready: $folder"
    exec 9>&-
    trap - INT TERM
}

make_upstream() {
    local folder=$1 list=$STATE/wanted.txt message site
    message=$("$PYTHON" -m venv "$folder" --without-pip 2>&1) ||
        explain_venv "$(python_version "$PYTHON")" "$message"
    site=$("$folder/bin/python" -c \
        'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$PYTHON" "$ASK" wanted upstream >"$list"
    # First, so that pip cannot write through a link.
    run_pip install --quiet --no-deps --target "$site" -r "$list"
    "$PYTHON" "$ASK" share "$site"
    PYTHON=$folder/bin/python try_imports pretrain
}
