# What runs on a host, in POSIX sh, as nothing else may be there. It is sent to `sh -s`: variables that it reads first,
# and last the function that is meant.
#
# It prints "say TEXT" for people and "KEY TEXT" for who sent it. What went wrong goes to stderr, with status 3.

umask 077
PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin
: "${ROOT:=${XDG_DATA_HOME:-$HOME/.local/share}/monarch-nb}"
cd /

fail() {
    printf '%s\n' "$*" >&2
    exit 3
}

# ---- Python ----

probe() { # CLIENT_PYTHON CHECK EXPECTED VENV CODE: is what is needed there?
    [ "$(uname -s)" = Linux ] || fail "nodes run on Linux only, and this host has $(uname -s)"
    echo "now $(date +%s)"
    echo "root $ROOT"
    echo "from ${SSH_CONNECTION%% *}"
    if [ "$("$CLIENT_PYTHON" -c "$CHECK" 2>/dev/null)" = "$EXPECTED" ]; then
        echo "python $CLIENT_PYTHON"
    elif [ -e "$ROOT/venvs/$VENV/complete" ] && [ -d "$ROOT/code/$CODE" ]; then
        echo "python $ROOT/venvs/$VENV/bin/python"
        echo "code $ROOT/code/$CODE"
    fi
}

install() { # VENV CODE MINOR REQUIREMENTS INDEX ARCHIVE: make it
    mkdir -p "$ROOT/venvs" "$ROOT/code" || fail "can not make $ROOT"
    exec 9>"$ROOT/lock"
    if command -v flock >/dev/null && ! flock -n 9; then
        echo "say waits for another that installs there"
        flock 9
    fi
    [ -e "$ROOT/venvs/$VENV/complete" ] || make_venv "$ROOT/venvs/$VENV"
    [ -d "$ROOT/code/$CODE" ] || unpack "$ROOT/code/$CODE"
    echo "python $ROOT/venvs/$VENV/bin/python"
    echo "code $ROOT/code/$CODE"
}

make_venv() {
    log=$ROOT/install.log
    printf '%s\n' "$REQUIREMENTS" >"$ROOT/requirements.txt" || fail "can not write to $ROOT"
    if command -v uv >/dev/null; then
        echo "say makes a virtual environment with uv"
        logged uv venv --clear --python "$MINOR" "$1"
        logged uv pip install --python "$1/bin/python" $INDEX -r "$ROOT/requirements.txt"
    else
        python=$(find_python) || fail "no Python $MINOR there (in the PATH: $(pythons)), and no uv, which brings one: \
install either, as in: curl -LsSf https://astral.sh/uv/install.sh | sh"
        echo "say makes a virtual environment with $python"
        logged "$python" -m venv --clear "$1"
        logged "$1/bin/python" -m pip install --no-input --disable-pip-version-check --no-color --progress-bar off \
            $INDEX -r "$ROOT/requirements.txt"
    fi
    : >"$1/complete"
}

logged() { # run a command; tell what takes long
    {
        "$@" 2>&1
        echo "status $?"
    } | tee "$log" | sed -un 's/^ *\(Downloading [^ ]*\)\(.*\)$/say \1\2/p; s/^Installing collected.*/say installs packages/p'
    [ "$(tail -n 1 "$log")" = "status 0" ] || fail "$1 failed; $ROOT/install.log ends with
$(tail -n 13 "$log" | sed '$d; s/^/    /')"
}

find_python() {
    for name in "python$MINOR" python3 python; do
        path=$(command -v "$name") && [ "$(minor_of "$path")" = "$MINOR" ] && echo "$path" && return
    done
    return 1
}

minor_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

pythons() {
    found=
    for name in python3 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14; do
        path=$(command -v "$name") && found="$found $(minor_of "$path")"
    done
    echo "${found:- none}" | sed 's/^ //'
}

unpack() {
    partial=$1.partial
    rm -rf "$partial"
    mkdir "$partial" && printf %s "$ARCHIVE" | base64 -d | tar -xzf - -C "$partial" && mv "$partial" "$1" ||
        fail "can not copy monarch_nb to $1"
}

# ---- allocators ----
# A node has a directory, $ROOT/nodes/$NODE: its certificate, what runs it, its pid, its log, and where it serves.

alive() {
    pid=
    [ -e "$dir/pid" ] && read -r pid 2>/dev/null <"$dir/pid"
    [ -n "$pid" ] && [ -e "/proc/$pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "$dir/"
}

published() {
    for file in "$dir"/nodes/*.node.json; do
        [ -e "$file" ] && echo "published $(cat "$file")" && return
    done
    return 1
}

start() { # NODE CERTIFICATE RUN UNIT: start an allocator that is not there yet, and wait until it serves
    dir=$ROOT/nodes/$NODE
    if alive && published; then
        echo "again yes"
        printf %s "$CERTIFICATE" | cmp -s - "$dir/node.pem" && return
        echo "renewed yes"
        printf %s "$CERTIFICATE" >"$dir/node.pem.new" && mv "$dir/node.pem.new" "$dir/node.pem" ||
            fail "can not write to $dir"
        return
    fi
    rm -rf "$dir"
    mkdir -p "$dir" && printf %s "$CERTIFICATE" >"$dir/node.pem" && printf %s "$RUN" >"$dir/run" && : >"$dir/log" ||
        fail "can not write to $dir"
    echo "say starts an allocator"
    exec 8<"$dir/log" # it may be removed with the directory
    if [ -n "$UNIT" ] && lingers; then
        start_unit
    else
        setsid sh "$dir/run" </dev/null >>"$dir/log" 2>&1 8<&- &
    fi
    tries=0
    until published; do
        tries=$((tries + 1))
        [ -d "$dir" ] && { [ ! -s "$dir/pid" ] || alive; } || give_up "its allocator has ended"
        [ "$tries" -le 1200 ] || give_up "its allocator did not come up within 2 minutes"
        sleep 0.1
    done
}

give_up() {
    last=$(tail -n 12 <&8 | sed 's/^/    /')
    stop
    fail "$1; its log ends with
${last:-    (it is empty)}"
}

lingers() { # can a unit of this user's go on when he is logged out?
    systemctl --user show-environment >/dev/null 2>&1 &&
        { [ "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)" = yes ] ||
            loginctl enable-linger >/dev/null 2>&1; }
}

start_unit() {
    units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
    mkdir -p "$units" && printf %s "$UNIT" >"$units/monarch-nb-$NODE.service" ||
        fail "can not write to $units"
    systemctl --user daemon-reload && systemctl --user enable --now "monarch-nb-$NODE.service" >&2 ||
        fail "systemctl --user does not start monarch-nb-$NODE.service"
    echo "unit monarch-nb-$NODE.service"
}

look() { # NODE: what has become of it?
    dir=$ROOT/nodes/$NODE
    if alive; then
        echo "state alive"
    else
        echo "state gone"
        [ ! -e "$dir/log" ] || echo "log $(tail -n 1 "$dir/log")"
    fi
}

stop() { # NODE: end it, and leave nothing; again is as once
    dir=$ROOT/nodes/$NODE
    unit=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/monarch-nb-$NODE.service
    if [ -e "$unit" ]; then
        systemctl --user disable --now "monarch-nb-$NODE.service" >/dev/null 2>&1
        rm -f "$unit"
        systemctl --user daemon-reload >/dev/null 2>&1
    fi
    tries=0
    while alive; do
        [ "$tries" -ne 0 ] || kill -TERM "$pid"
        [ "$tries" -lt 250 ] || kill -KILL "$pid"
        tries=$((tries + 1))
        sleep 0.1
    done
    rm -rf "$dir"
}
