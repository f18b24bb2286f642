#!/usr/bin/env bash
# Builds runtime, runner, RPC server and the planner's loops with sanitizers, and runs the tests that use them: once with
# those of addresses and undefined behaviour, once with that of threads.
#
#   scripts/sanitize.sh VENV [PYTEST ARGUMENT]...
#
# ONLY=address or ONLY=thread does one of the two.
set -euo pipefail

cd "$(dirname "$0")/.."
python=$(realpath --no-symlinks "$1")/bin/python
shift
compiler=${CXX:-g++}

# What sanitizers make false: how much memory a process takes, or has left, and that a library ends with what it needs.
excluded=(
    --deselect tests/runtime/test_process.py
    --deselect tests/runtime/test_short_of_memory.py
    --deselect tests/runtime/test_runner.py::test_memory_is_the_arena
    --deselect tests/runtime/test_runner.py::test_memory_returns_when_the_budget_shrinks
    --deselect tests/runtime/test_runner.py::test_budgets_switch_while_inferences_run
    --deselect "tests/runtime/test_runner.py::test_libraries_that_are_cut_short_are_refused[without its table of sections]"
)

library() { realpath "$($compiler -print-file-name="$1")"; }

run() { # NAME SANITIZERS LIBRARIES PYTEST-ARGUMENTS...
    local name=$1 sanitizers=$2 preload=$3
    shift 3
    local native=$PWD/build/sanitize/$name
    [ "${ONLY:-$name}" = "$name" ] || return 0
    echo "== $sanitizers"
    cmake -S runtime_ext -B "$native" -DCMAKE_CXX_COMPILER="$compiler" -DFLEXCOMP_SANITIZE="$sanitizers" \
        -DPython_EXECUTABLE="$python" >"$native.log" 2>&1 || { cat "$native.log"; exit 1; }
    cmake --build "$native" --parallel "$(nproc)" >"$native.log" 2>&1 || { cat "$native.log"; exit 1; }
    # Python is not instrumented: the sanitizer has to be there first. Without randomised addresses, since that of threads
    # wants the memory map to itself.
    FLEXCOMP_NATIVE=$native FLEXCOMP_CXXFLAGS="-fsanitize=$sanitizers -g -fno-omit-frame-pointer" \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/build/sanitize/suppressions \
        setarch "$(uname -m)" --addr-no-randomize env LD_PRELOAD="$preload" \
        "$python" -m pytest -q -p no:cacheprovider --capture=sys "${excluded[@]}" "$@"
}

mkdir -p build/sanitize
# Libraries that are not instrumented: the order of their threads' work, and of the last two users of an object, is not seen.
printf 'race:%s\n' onnxruntime_pybind11_state tokenizers.abi3 TVMFFIObjectDecRef >build/sanitize/suppressions
run address address,undefined "$(library libasan.so) $(library libubsan.so)" tests/plan/test_native.py \
    tests/runtime tests/api/test_calls.py tests/api/test_decoder.py tests/api/test_follow.py tests/api/test_pools.py tests/api/test_sources.py tests/remote/test_hostile_clients.py "$@"
run thread thread "$(library libtsan.so)" tests/runtime tests/api/test_calls.py tests/api/test_decoder.py tests/api/test_follow.py tests/api/test_pools.py tests/api/test_sources.py tests/remote/test_hostile_clients.py "$@"
