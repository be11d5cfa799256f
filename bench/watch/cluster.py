"""`python -m bench.watch.cluster JSON`: brokers of the test kit on one monitored loop.

A command is JSON: the name of a method of `suwi.testing.Cluster`, then its arguments.
"""

import json
import sys

from bench.watch.callbacks import CallbackWatch
from bench.watch.commands import answer, obey
from suwi.testing import Cluster

_PATIENCE_S = 300


def main() -> None:
    options = json.loads(sys.argv[1])
    watch = CallbackWatch()
    watch.install()
    with Cluster(brokers=options["brokers"], settings=options["settings"]) as cluster:
        answer({broker: cluster.address(broker) for broker in cluster.brokers})

        def do(line: str) -> object:
            name, *arguments = json.loads(line)
            limit = {"timeout_s": _PATIENCE_S} if name.startswith("wait") else {}
            return getattr(cluster, name)(*arguments, **limit)

        obey(watch, do)


if __name__ == "__main__":
    main()
