#!/usr/bin/env bash
# Create .venv from requirements.lock, with Suwi itself installed in place. Does nothing when
# .venv was made from the same lock and package description, in the same directory. Then the pages
# of the console.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python.sh

description=$(sed '/^\[tool\.ruff\]/,$d' pyproject.toml) # what follows only configures checks
wanted=$({ pwd; echo "$description"; cat requirements.lock tools/setup.sh; } | cksum)
stamp=.venv/.suwi-setup
if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exec tools/build_console.sh
fi

python=$(find_python)
packages=$(grep -c == requirements.lock)
download=$(sed -n 's/^# download: //p' requirements.lock)
disk=$(sed -n 's/^# on disk: //p' requirements.lock)
echo "Setting up .venv with $("$python" --version), about $disk on disk."
echo "Downloads $packages packages, about $download, less what pip has in its cache."

rm -f "$stamp"
if ! "$python" -m venv --clear .venv; then
    echo "$python could not create a virtual environment (on Debian: apt install python3-venv)." >&2
    exit 1
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
# The wheels stay: the test of the built package installs them again without the network.
pip wheel --wheel-dir .venv/wheels --requirement requirements.lock
pip install --no-index --find-links .venv/wheels --no-deps --requirement requirements.lock
pip install --no-index --no-deps --no-build-isolation --editable .
echo "$wanted" >"$stamp"
tools/build_console.sh
echo "Ready: .venv/bin/suwi"
