#!/bin/sh
# Makes .venv: fanin built in release mode, PyTorch, and what the tests need. Run it through `make setup`.
#
# Every step leaves a stamp in .venv/stamps and is skipped while nothing that it depends on is newer, so a second run takes
# a second. FANIN_FULL_TORCH=1 installs PyTorch with all of CUDA (the default where a GPU is found); PYTHON=... picks an
# interpreter.
set -eu
cd "$(dirname "$0")/.."

rust_minor_min=89
python_minor_min=11
stamps=.venv/stamps

fail() {
    echo "setup: $*" >&2
    exit 1
}

check_cargo() {
    command -v cargo >/dev/null 2>&1 ||
        fail "cargo is missing. Install Rust with rustup (https://rustup.rs), open a new shell and run this again."
    minor=$(cargo --version | sed 's/^cargo 1\.\([0-9]*\).*/\1/')
    [ "$minor" -ge "$rust_minor_min" ] ||
        fail "$(cargo --version) is too old: 1.$rust_minor_min or newer is needed. With rustup: rustup update stable"
}

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if "$name" -c "import sys; sys.exit(sys.version_info < (3, $python_minor_min))" 2>/dev/null; then
            python=$name
            return
        fi
    done
    fail "no Python 3.$python_minor_min or newer found (tried: ${PYTHON:-python3, python3.11 to 3.14}). Install one, or name it: make setup PYTHON=/path/to/python3"
}

# newer STAMP PATH... : true if there is no such stamp or a path holds something newer.
newer() {
    [ -f "$stamps/$1" ] || return 0
    stamp=$stamps/$1
    shift
    [ $# -gt 0 ] || return 1
    [ -n "$(find "$@" -newer "$stamp" -type f ! -path '*/target/*' 2>/dev/null | head -n 1)" ]
}

make_environment() {
    if [ ! -x .venv/bin/python ]; then
        echo "setup: making .venv with $($python --version)"
        # Debian splits the module off; no command shows that it is missing, so the name stands for it.
        "$python" -c "import ensurepip" 2>/dev/null || ./scripts/packages.sh ensurepip=python3-venv
        "$python" -m venv .venv || {
            rm -rf .venv
            fail "this Python cannot make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"
        }
    fi
    mkdir -p $stamps
    newer environment || return 0
    .venv/bin/python -m pip install --quiet --disable-pip-version-check uv 'maturin>=1.9,<2' </dev/null
    touch $stamps/environment
}

install_torch() {
    kind=lean
    [ "${FANIN_FULL_TORCH:-0}" = 0 ] && ! nvidia-smi -L >/dev/null 2>&1 || kind=full
    newer "torch-$kind" scripts/lean_torch.py || return 0
    echo "setup: installing PyTorch ($kind)"
    if [ $kind = lean ]; then
        .venv/bin/python scripts/lean_torch.py
    else
        torch=$(sed -n 's/^TORCH = "\(.*\)"/\1/p' scripts/lean_torch.py)
        # Reinstalled, because stubs of a lean install would hide the real libraries.
        .venv/bin/python -m uv pip install --python .venv/bin/python --reinstall-package torch "$torch" numpy </dev/null
    fi
    rm -f $stamps/torch-*
    touch "$stamps/torch-$kind"
}

install_tools() {
    newer tools pyproject.toml || return 0
    echo "setup: installing the test tools"
    tools=$(.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"])')
    # shellcheck disable=SC2086
    .venv/bin/python -m uv pip install --python .venv/bin/python $tools </dev/null
    touch $stamps/tools
}

build_fanin() {
    newer fanin crates spec Cargo.toml Cargo.lock pyproject.toml || return 0
    echo "setup: building fanin in release mode"
    touch $stamps/fanin-started
    # Editable: a change of a Python file needs no new build.
    VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH .venv/bin/maturin develop --release --uv </dev/null
    # The stamp bears the time of the start: a file changed during the build must lead to another one.
    mv $stamps/fanin-started $stamps/fanin
}

./scripts/packages.sh git=git cc=build-essential objdump=binutils
check_cargo
find_python
make_environment
install_torch
install_tools
build_fanin
