#!/usr/bin/env bash
# A real SGLang server on a machine without a GPU: for the tests, and to see rollouts over HTTP before there is a GPU.
#
#   launch/sglang_cpu.sh install                       builds the server's own environment (2 GB), if it is not there
#   launch/sglang_cpu.sh start --model DIR --port P    starts a server, waits until it generates, prints URL and pid
#   launch/sglang_cpu.sh stop PID|FILE                 ends it, after at most ten seconds for what it is working on
#   launch/sglang_cpu.sh where                         prints the directory of the installed environment
#   launch/sglang_cpu.sh install-router                the same for sglang-router, in an environment of 150 MB
#   launch/sglang_cpu.sh router --port P --worker URL [--worker URL ...]
#
# `start` and `router` take further: --log FILE and --pid-file FILE (by default port-P.log and port-P.pid beside the
# environment), --seconds N to wait at most (300), --while PID to end together with that process. Every other argument
# goes to the server and wins over what is set here, such as --max-running-requests 64.
#
# Needs Linux on x86_64 and Python 3.11, found as python3.11 or named by PYTHON311; nothing else of the machine is used.
# torch must be its CPU build: where pip does not find it by itself, name a directory or an index that has it in
# PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL. The environment is in RLZERO_SGLANG_HOME, or in the user's cache directory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^sglang==//p' "$here/sglang_cpu_requirements.txt")
home=${RLZERO_SGLANG_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/rlzero/sglang-cpu-$version}

fail() { # CODE MESSAGE
    echo "sglang_cpu.sh: $2" >&2
    exit "$1"
}

find_python() {
    local name
    for name in ${PYTHON311:-python3.11 python3 python}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail 1 "no Python 3.11 among ${PYTHON311:-python3.11, python3 and python}; name one in PYTHON311"
}

# Builds $home/NAME from a requirements file. The hash of that file is written last: an environment that was begun and
# never finished, or that was made from other requirements, is made anew. The lock makes a second install wait.
install() { # NAME REQUIREMENTS MODULE
    local name=$1 requirements=$2 module=$3 python hash
    hash=$(sha256sum <"$requirements")
    mkdir -p "$home"
    exec 9>"$home/$name.lock"
    flock 9
    if installed "$name" "$requirements"; then
        echo "$home/$name is installed"
        return
    fi
    python=$(find_python)
    rm -rf "${home:?}/$name" "$home/$name.done"
    "$python" -m venv "$home/$name"
    "$home/$name/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$requirements" ||
        fail 1 "pip could not install $requirements; its own words are above (torch: see the head of this script)"
    "$home/$name/bin/python" -c "import $module" ||
        fail 1 "the environment in $home/$name cannot import $module"
    echo "$hash" >"$home/$name.done"
    echo "$home/$name is installed"
}

installed() { # NAME REQUIREMENTS
    [[ -f $home/$1.done && $(<"$home/$1.done") == "$(sha256sum <"$2")" ]] && "$home/$1/bin/python" -c '' 2>/dev/null
}

# Whether a GET of PATH on a port of this machine is answered 200. Bash's own sockets: curl may be missing.
answers() { # PORT PATH
    local status
    status=$(
        exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$1" || exit 0
        printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
        IFS=' ' read -r -t 30 _ status _ <&3
        echo "$status"
    ) || true
    [[ $status == 200 ]]
}

taken() { # PORT
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Runs a command in a session of its own, so that all its processes can be signalled as the group -PID.
launch() { # WHAT PATH COMMAND...
    local what=$1 path=$2 pid deadline
    shift 2
    [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || fail 2 "$what needs --port, a number; got '$port'"
    ! taken "$port" || fail 1 "port $port is taken by another process"
    log=${log:-$home/port-$port.log}
    pid_file=${pid_file:-$home/port-$port.pid}
    setsid "$@" >"$log" 2>&1 </dev/null 9>&- &
    pid=$!
    trap 'kill -KILL -- "-$pid" 2>/dev/null || true; exit 1' INT TERM
    echo "$pid" >"$pid_file"
    if [[ -n $parent ]]; then
        setsid bash -c 'while kill -0 "$1" && kill -0 "$2"; do sleep 1; done; kill -KILL -- "-$2"' - "$parent" "$pid" \
            >/dev/null 2>&1 </dev/null &
    fi
    deadline=$((SECONDS + seconds))
    until answers "$port" "$path"; do
        if ! kill -0 "$pid" 2>/dev/null; then
            tail -n 20 "$log" >&2
            kill -KILL -- "-$pid" 2>/dev/null || true
            fail 1 "the $what ended before it was ready; its last words are above, all of them in $log"
        elif ((SECONDS >= deadline)); then
            kill -KILL -- "-$pid" 2>/dev/null || true
            fail 1 "the $what was not ready after $seconds s and was stopped; see $log, or wait longer with --seconds"
        fi
        sleep 0.3
    done
    echo "http://127.0.0.1:$port pid $pid log $log"
}

# Sets the options of `start` and `router`; what it does not know is kept in `rest`.
parse() {
    model='' port='' log='' pid_file='' seconds=300 parent='' workers=() rest=()
    local name value
    while (($#)); do
        name=${1%%=*}
        case $name in
        --model | --port | --log | --pid-file | --seconds | --while | --worker)
            if [[ $1 == *=* ]]; then
                value=${1#*=}
            else
                (($# > 1)) || fail 2 "$1 needs a value"
                value=$2
                shift
            fi
            ;;&
        --model) model=$value ;;
        --port) port=$value ;;
        --log) log=$value ;;
        --pid-file) pid_file=$value ;;
        --seconds) seconds=$value ;;
        --while) parent=$value ;;
        --worker) workers+=("$value") ;;
        *) rest+=("$1") ;;
        esac
        shift
    done
    [[ $seconds =~ ^[1-9][0-9]*$ ]] || fail 2 "--seconds expects a number, got '$seconds'"
    [[ -z $parent || $parent =~ ^[1-9][0-9]*$ ]] || fail 2 "--while expects a process id, got '$parent'"
}

where() {
    installed server "$here/sglang_cpu_requirements.txt" ||
        fail 1 "no server of this version in $home; run launch/sglang_cpu.sh install"
    echo "$home"
}

start() {
    parse "$@"
    [[ -f $model/config.json ]] || fail 2 "start needs --model, a model directory with a config.json; got '$model'"
    where >/dev/null
    # One OpenMP thread: with more of them than idle cores the server is 5 to 15 times slower. --sleep-on-idle: an idle
    # server would keep a core busy.
    HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} launch server /health_generate \
        "$home/server/bin/python" "$here/sglang_cpu_server.py" --model-path "$(cd "$model" && pwd)" --host 127.0.0.1 \
        --port "$port" --device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch \
        --max-total-tokens 20000 --max-running-requests 32 --mem-fraction-static 0.3 --sleep-on-idle "${rest[@]}"
}

router() {
    parse "$@"
    ((${#workers[@]})) || fail 2 "router needs --worker URL, once for each server"
    installed router "$here/sglang_router_requirements.txt" ||
        fail 1 "no router in $home; run launch/sglang_cpu.sh install-router"
    # The router's own choice of a worker looks at the text of a prompt, of which requests of token ids have none: they
    # would all go to one worker.
    launch router /readiness "$home/router/bin/python" -m sglang_router.launch_router --worker-urls "${workers[@]}" \
        --host 127.0.0.1 --port "$port" --policy round_robin "${rest[@]}"
}

stop() {
    (($# == 1)) || fail 2 "stop expects a process id or the file that holds one"
    local pid=$1
    [[ ! -f $pid ]] || pid=$(<"$pid")
    [[ $pid =~ ^[1-9][0-9]*$ ]] || fail 2 "stop expects a process id or the file that holds one, got '$1'"
    if [[ -r /proc/$pid/cmdline ]] && ! grep -qa -e sglang_cpu_server -e sglang::router "/proc/$pid/cmdline"; then
        fail 2 "process $pid was not started by this script"
    fi
    # TERM to the server alone lets it finish what it runs; a stopped process would not hear it, hence CONT.
    kill -CONT -- "-$pid" 2>/dev/null || return 0
    kill -TERM "$pid" 2>/dev/null || true
    for _ in {1..100}; do
        [[ -d /proc/$pid ]] || break
        sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
}

command=${1:-}
shift || true
case $command in
install | install-router | where)
    (($# == 0)) || fail 2 "$command takes no argument, got '$1'"
    case $command in
    install) install server "$here/sglang_cpu_requirements.txt" torch ;;
    install-router) install router "$here/sglang_router_requirements.txt" sglang_router ;;
    where) where ;;
    esac
    ;;
start | router | stop) "$command" "$@" ;;
*) fail 2 "expected install, start, stop, where, install-router or router, got '$command'; see the script's head" ;;
esac
