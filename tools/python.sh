# Sourced: find_python prints a Python that Suwi supports; $PYTHON, where it is set, must be one.
# find_newest_python prints the newest one: of those on the PATH and of pyenv; $NEWEST, where it is set.

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

find_newest_python() {
    local minor candidate
    for minor in 14 13 12 11; do
        for candidate in ${NEWEST:-"python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python}; do
            candidate=$(command -v "$candidate") || continue
            if "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
    find_python
}
