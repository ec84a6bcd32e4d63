# shellcheck shell=bash
# What must be there before anything is installed, and what went wrong after;
# the few functions that all scripts share come first.

# Megabytes that a first installation takes: with torch, without, and in the
# folder where pip unpacks its downloads.
SPACE_TORCH=7000
SPACE_REST=1500
SPACE_DOWNLOADS=3500

say() { printf '[setup] %s\n' "$*"; }

stop() {
    printf '\n%s stopped: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

usage() {
    # The comment at the head of a script.
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$1"
}

active_environment() {
    # The user's, or nothing. conda's base does not count: it is active in
    # every shell, and 7 GB more in it would surprise.
    if [ -n "${VIRTUAL_ENV:-}" ]; then
        echo "$VIRTUAL_ENV"
    elif [ -n "${CONDA_PREFIX:-}" ] &&
        [ "${CONDA_DEFAULT_ENV:-}" != base ]; then
        echo "$CONDA_PREFIX"
    fi
}

python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

is_supported() {
    case $(python_version "$1") in
        3.10 | 3.11 | 3.12) return 0 ;;
        *) return 1 ;;
    esac
}

find_python() {
    # Leaves the interpreter for a new environment in BASE_PYTHON.
    local candidates=(python3 python3.12 python3.11 python3.10)
    local candidate version seen=''
    [ -z "${MIM_PYTHON:-}" ] || candidates=("$MIM_PYTHON")
    for candidate in "${candidates[@]}"; do
        if is_supported "$candidate"; then
            # shellcheck disable=SC2034  # read in setup.sh
            BASE_PYTHON=$candidate
            return
        fi
        version=$(python_version "$candidate") || version='not to be run'
        seen="$seen, $candidate is $version"
    done
    stop "Python 3.10, 3.11 or 3.12 is needed and was not found (${seen#, })." \
        "Install one, or name it: MIM_PYTHON=/path/to/python."
}

# --- disk -------------------------------------------------------------------

disk_of() {
    # The file system of a folder (or of its first parent that exists) and
    # the megabytes that are free on it.
    local folder=$1
    while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
    df -Pk "$folder" | awk 'NR == 2 { print $1, int($4 / 1024) }'
}

need_space() {
    local folder=$1 needed=$2 free
    free=$(disk_of "$folder")
    free=${free##* }
    [ "$free" -ge "$needed" ] || stop "not enough disk space: the set-up" \
        "needs about $needed MB in $folder, and $free MB are free there." \
        "Make room and run this again."
}

check_space() {
    # $1: yes if torch is still to be installed.
    local downloads=${TMPDIR:-/tmp} here there
    if [ "$1" = no ]; then
        need_space "$ENV_DIR" "$SPACE_REST"
        return
    fi
    here=$(disk_of "$ENV_DIR")
    there=$(disk_of "$downloads")
    if [ "${here% *}" = "${there% *}" ]; then
        need_space "$ENV_DIR" $((SPACE_TORCH + SPACE_DOWNLOADS))
    else
        need_space "$ENV_DIR" "$SPACE_TORCH"
        need_space "$downloads" "$SPACE_DOWNLOADS"
    fi
}

# --- compiler ---------------------------------------------------------------

cxx_standard() {
    # torch's headers ask for C++20 from release 2.10 on.
    local major minor rest
    IFS=. read -r major minor rest <<<"$1"
    if [ "$major" -gt 2 ] || [ "$minor" -ge 10 ]; then
        echo c++20
    else
        echo c++17
    fi
}

check_compiler() {
    # $1: release of torch.
    local compiler=${CXX:-c++} standard include
    standard=$(cxx_standard "$1")
    command -v "${compiler%% *}" >/dev/null || stop "no C++ compiler was" \
        "found (${compiler%% *}), and the tests need mmcv's compiled" \
        "operators. On Debian or Ubuntu: apt-get install g++. Then run this" \
        "again. (tools/demo.sh needs no compiler.)"
    # shellcheck disable=SC2086  # CXX may hold arguments
    echo 'int main() { return 0; }' |
        $compiler "-std=$standard" -x c++ -fsyntax-only - 2>/dev/null ||
        stop "the C++ compiler ($compiler) does not take -std=$standard," \
            "which torch $1 needs. Use GCC 10 or newer, or set CXX."
    include=$("$PYTHON" -c \
        'import sysconfig; print(sysconfig.get_paths()["include"])')
    [ -f "$include/Python.h" ] || stop "Python's headers are missing" \
        "($include/Python.h). On Debian or Ubuntu: apt-get install" \
        "python$(python_version "$PYTHON")-dev. Then run this again."
}

# --- what went wrong --------------------------------------------------------

explain_venv() {
    # $1: version of Python, $2: what it printed.
    printf '%s\n' "$2" >&2
    case $2 in
        *'No space left'*) stop "the disk is full. Make room (df -h" \
            "$ENV_DIR) and run this again." ;;
        *) stop "Python $1 could not make a virtual environment. On Debian" \
            "or Ubuntu: apt-get install python$1-venv. Then run this again." ;;
    esac
}

explain_pip() {
    # $1: pip's log. One sentence for the causes that are no fault of pip's.
    local network='NewConnectionError|NameResolutionError|ConnectTimeout'
    network="$network|ReadTimeout|Max retries exceeded|ProxyError"
    network="$network|Network is unreachable|Connection (refused|reset)"
    if grep -qE 'No space left on device|Errno 28' "$1" 2>/dev/null; then
        stop "the disk is full. Make room (df -h $ENV_DIR" \
            "${TMPDIR:-/tmp}) and run this again."
    elif grep -qE "$network" "$1" 2>/dev/null; then
        stop "pip could not reach the package index. Check the network (or" \
            "pip's proxy and index settings) and run this again. Log: $1"
    fi
    stop "pip failed; the lines above and $1 say why."
}

explain_import() {
    # $1: the last line of the error.
    case $1 in
        *libGL*) stop "OpenCV lacks a system library ($1). On Debian or" \
            "Ubuntu: apt-get install libgl1 libglib2.0-0. Then run this" \
            "again." ;;
        *) stop "everything was installed, but it cannot be imported: $1" ;;
    esac
}
