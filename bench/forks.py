"""`python -m bench.forks [--mb N]`: time and disk space of a fork of a test cluster, beside a copy.

Three brokers, one topic with N megabytes of records and three replicas.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from confluent_kafka import Producer

from suwi.testing import Cluster

_T = TypeVar("_T")

_TOPIC = "orders"
_PARTITIONS = 6
_RECORD_BYTES = 10_000
_REPETITIONS = 3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=int, default=1000)
    megabytes = options.parse_args().mb
    with Cluster(brokers=3) as cluster:
        _fill(cluster, megabytes)
        print(f"{megabytes} MB of records, {_used_mb(cluster):.0f} MB on the disks of 3 brokers\n")
        print("| | s | MB of disk |\n|---|---|---|")
        taken = [_timed(cluster.snapshot) for _ in range(_REPETITIONS)]
        print(f"| snapshot | {_median(s for s, _ in taken)} | |")
        snapshot = taken[-1][1]
        for name, is_copy in (("fork", False), ("fork as a copy", True)):
            seconds, used_mb = [], 0.0
            for _ in range(_REPETITIONS):
                fork = snapshot.fork(copy=is_copy)
                seconds.append(_timed(fork.start)[0])
                used_mb = _used_mb(fork)
                fork.stop()
            print(f"| {name}, until all brokers serve | {_median(seconds)} | {used_mb:.1f} |")


def _fill(cluster: Cluster, megabytes: int) -> None:
    cluster.create_topic(_TOPIC, _PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": "all",
            "queue.buffering.max.messages": 1000,
        }
    )
    value = os.urandom(_RECORD_BYTES)
    for number in range(megabytes * 1_000_000 // _RECORD_BYTES):
        while True:
            try:
                producer.produce(_TOPIC, value, partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(600) == 0
    cluster.wait_until_healthy(timeout_s=600)


def _used_mb(cluster: Cluster) -> float:
    """The size of the files that no other cluster shares."""
    found = [
        path.stat()
        for broker in cluster.brokers
        for path in cluster.files(broker).rglob("*")
        if path.is_file()
    ]
    return sum(each.st_size for each in found if each.st_nlink == 1) / 1e6


def _timed(act: Callable[[], _T]) -> tuple[float, _T]:
    start = time.perf_counter()
    result = act()
    return time.perf_counter() - start, result


def _median(seconds: Iterable[float]) -> str:
    return f"{statistics.median(seconds):.3f}"


if __name__ == "__main__":
    main()
