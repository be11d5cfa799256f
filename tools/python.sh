# Sourced: find_python prints a Python that Suwi supports; $PYTHON, where it is set, must be one.

find_python() {
    local candidate path
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        path=$(command -v "$candidate") || continue
        # Run it: a shim on the PATH may stand for a Python that is not there.
        if "$path" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
            2>/dev/null; then
            echo "$path"
            return
        fi
    done
    echo "Suwi needs Python 3.11, 3.12, 3.13 or 3.14; ${PYTHON:-python3} is none of them." >&2
    echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2
    return 1
}
