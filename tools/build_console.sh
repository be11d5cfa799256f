#!/usr/bin/env bash
# Build the pages of the console into src/suwi/console/static, if they are older than their source.
# Where neither Node.js nor the packages of the front end can be had, this says so in one line, and
# everything but the console works.
set -euo pipefail
cd "$(dirname "$0")/.."
built=src/suwi/console/static/index.html

if [ -e "$built" ] &&
    [ -z "$(find console src/suwi/lab/web -name node_modules -prune -o -type f -newer "$built" -print -quit)" ]; then
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! tools/npm.sh ci --no-audit --no-fund >"$log" 2>&1; then
    echo "The pages of the console are not built: $(tail -n 1 "$log"). Everything else works." >&2
    exit 0
fi
if ! tools/npm.sh run build >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
echo "Built the pages of the console."
