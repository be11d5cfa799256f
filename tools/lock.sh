#!/usr/bin/env bash
# Write requirements.lock: what the ranges of pyproject.toml (base, dev, the console and what Spark needs) resolve to today.
# Resolved on the oldest supported Python, so that no pin asks for a newer one.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/python.sh

python=$(PYTHON=${PYTHON:-python3.11} find_python)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip --disable-pip-version-check "$@"; }

pip wheel --quiet --wheel-dir "$work/wheels" '.[dev,console,spark,iceberg,java,avro,protobuf,spark-tests]'
rm "$work"/wheels/suwi-*.whl
pip install --quiet --no-index --no-deps "$work"/wheels/*.whl
{
    echo "# Exact versions of everything in a development environment (base, dev, the console and what Spark needs)."
    echo "# Written by \`make lock\` from the ranges in pyproject.toml."
    echo "# download: $(du -sm "$work/wheels" | cut -f1) MB"
    echo "# on disk: $(du -sm "$work" | cut -f1) MB"
    pip list --format=freeze --exclude pip --exclude setuptools | LC_ALL=C sort -f
} >"$work/lock"
mv "$work/lock" requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) packages"
