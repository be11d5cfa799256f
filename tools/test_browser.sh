#!/usr/bin/env bash
# The front end's own checks, then the console in a real browser. What cannot run here is skipped,
# and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -d console/node_modules ]; then
    tools/npm.sh run check
    tools/npm.sh test
else
    echo "SKIPPED the checks of console/: its packages could not be installed (see make setup)."
fi
if ! command -v "${CHROMIUM:-chromium}" >/dev/null; then
    echo "SKIPPED the tests in a browser: there is no chromium (apt install chromium, or CHROMIUM=/path/to/it)."
elif [ ! -e src/suwi/console/static/index.html ]; then
    echo "SKIPPED the tests in a browser: the pages of the console are not built (see make setup)."
else
    tools/run_tests.sh .venv/bin/python tests/browser
fi
