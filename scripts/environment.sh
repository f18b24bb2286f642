#!/usr/bin/env bash
# Makes a virtual environment with flexcomp and one of its extras, or brings it up to date.
#
#   scripts/environment.sh DIRECTORY EXTRA
#
# Needs Python >= 3.10 with venv, and a C++20 compiler. Set PYTHON to choose an interpreter.
set -euo pipefail

directory=$1
extra=$2
cd "$(dirname "$0")/.."

fail() {
    printf '%s\n' "error: $1" >&2
    exit 1
}

is_usable() { # INTERPRETER: at least 3.10, able to make environments that have pip
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
        && "$1" -c 'import venv, ensurepip' 2>/dev/null
}

is_recent() { # INTERPRETER: at least 3.10
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() { # distributions build theirs with profiles, pyenv does not: it takes a third longer
    local candidate recent=
    for candidate in ${PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9]*/bin/python3}; do
        candidate=$(command -v "$candidate") || continue
        if is_usable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        if is_recent "$candidate"; then recent=$candidate; fi
    done
    if [ -n "$recent" ]; then
        fail "$recent cannot make virtual environments; on Debian: apt-get install python3-venv"
    fi
    fail "no Python >= 3.10 found; on Debian: apt-get install python3 python3-venv (or set PYTHON=...)"
}

check_compiler() {
    local compiler=${CXX:-c++}
    if [ -z "${CXX:-}" ] && ! command -v c++ >/dev/null; then compiler=g++; fi
    command -v "${compiler%% *}" >/dev/null \
        || fail "no C++ compiler found; on Debian: apt-get install g++ (or set CXX=...)"
    # shellcheck disable=SC2086
    printf '#include <barrier>\nint main() { return 0; }\n' | $compiler -std=c++20 -x c++ -fsyntax-only - 2>/dev/null \
        || fail "$compiler cannot compile C++20; g++ >= 11 can, on Debian: apt-get install g++"
}

fingerprint() { # of everything that an editable install copies, compiles, or has a list of, and of how it is made
    { cat pyproject.toml scripts/environment.sh; find flexcomp passes schedules -type d ! -name __pycache__ | sort; find runtime_ext -type f ! -name '*.py' ! -name '*.pyc' -print0 | sort -z | xargs -0 cat; pwd; } | cksum | tr ' ' -
}

build_requirements() { # and CMake and Ninja, where the system has none that will do
    "$directory/bin/python" - <<'END'
import json
import re
import shutil
import subprocess

text = open("pyproject.toml").read()
named = json.loads(re.search(r"^requires = (\[.*\])$", text, re.MULTILINE)[1])
cmake = shutil.which("cmake") and subprocess.run(["cmake", "--version"], capture_output=True, text=True).stdout.split()[2]
if not cmake or tuple(map(int, cmake.split(".")[:2])) < (3, 20):
    named.append("cmake>=3.20")
if not any(map(shutil.which, ("ninja", "ninja-build", "make"))):
    named.append("ninja>=1.5")
print(*(requirement.replace(" ", "") for requirement in named))
END
}

stamp=$directory/.installed-$extra
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; then exit 0; fi

check_compiler
if [ ! -x "$directory/bin/python" ]; then
    python=$(find_python) || exit 1
    echo "making $directory with $python ($("$python" -V 2>&1))"
    "$python" -m venv "$directory"
fi
echo "installing flexcomp[$extra] into $directory; the first time this downloads a few hundred MB"
# Without pip's isolation, which makes a folder of another name for every build: what was compiled is found again, also for a wheel.
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check $(build_requirements)
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[$extra]"
current=$(fingerprint)
for other in "$directory"/.installed-*; do # made of other sources, which this installation has replaced
    if [ -f "$other" ] && [ "$(cat "$other")" != "$current" ]; then rm "$other"; fi
done
printf '%s\n' "$current" >"$stamp"
