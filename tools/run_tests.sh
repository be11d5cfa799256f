#!/usr/bin/env bash
# Run pytest: tools/run_tests.sh PYTHON ARGUMENTS… [-- ARGUMENTS…]…
# Several lists of arguments are runs at the same time: one computes while the other waits. What those after the
# first print is shown at the end.
# In continuous integration up to five tests that failed run once more, each alone. One that passes then was
# starved by its neighbours or is unsteady: it is named at the end, for somebody to find the cause, and the run
# passes. Elsewhere, and when more fail, a failure is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
scratch=$(mktemp -d)
others=()
trap '[ ${#others[@]} = 0 ] || kill "${others[@]}" 2>/dev/null; rm -rf "$scratch"' EXIT

# In a new working copy every process of a run would compile all tests, for longer than it takes to collect them,
# and every process of Spark the inner loops of reading: it is done once before, by three processes.
compile_tests() {
    local tag
    tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
    [ "$(find tests -name "test_*.$tag-pytest-*.pyc" | wc -l)" -lt 250 ] || return 0
    "$python" -m pytest --collect-only -qq tests/[a-l]* &
    "$python" -c 'from suwi.spark import kernel; from suwi.spark.decoders import json_columns
kernel.load_kernel(); json_columns.load_kernel()' &
    "$python" -m pytest --collect-only -qq tests/[m-z]*
    wait
} &>/dev/null # What cannot be imported the run itself says.

# run NUMBER ARGUMENTS…: what has failed is in $scratch/NUMBER.
run() {
    local cache=$scratch/$1
    shift
    "$python" -m pytest -o cache_dir="$cache" "$@"
}

[[ " $* " != *" -n "* ]] || compile_tests
first=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    first+=("$1")
    shift
done
while [ $# -gt 0 ]; do
    shift
    arguments=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        arguments+=("$1")
        shift
    done
    number=$((${#others[@]} + 1))
    run "$number" "${arguments[@]}" &>"$scratch/$number.txt" &
    others+=($!)
done
run 0 "${first[@]}"
status=$?
waited=${#others[@]}
for ((number = 1; number <= waited; number++)); do
    wait "${others[0]}"
    ended=$?
    others=("${others[@]:1}")
    cat "$scratch/$number.txt"
    # The worst: 1 is "tests failed", what is above it is no result at all.
    [ "$ended" -le "$status" ] || status=$ended
done

[ "$status" = 1 ] && [ "${CI:-}" = true ] || exit "$status"
mapfile -t failed < <("$python" -c '
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/v/cache/lastfailed")):
    print(*json.loads(path.read_text()), sep="\n")' "$scratch")
if [ "${#failed[@]}" = 0 ] || [ "${#failed[@]}" -gt 5 ]; then
    exit "$status"
fi
for test in "${failed[@]}"; do
    echo "== once more, alone: $test"
    "$python" -m pytest -p no:cacheprovider "$test" || exit 1
done
printf 'UNSTEADY, failed beside others and passed alone: %s\n' "${failed[@]}"
