"""`python -m bench.watch.broker serve …`: `suwi serve` with its loop monitored from the start.

Recording starts with the process, so that an `end` without a `begin` reports the start.
"""

import threading

from bench.watch.callbacks import CallbackWatch
from bench.watch.commands import obey
from suwi.cli.main import app


def main() -> None:
    watch = CallbackWatch()
    watch.install()
    threading.Thread(target=obey, args=(watch,), name="bench-commands", daemon=True).start()
    app()


if __name__ == "__main__":
    main()
