"""Producers with transactions, or with idempotence only, each on a thread of its own.

Like `Transactions` of `Loads.java`: whole transactions of `size` records for so many seconds, after
a warm-up; with size 0 acknowledged records. A transaction's records go to one partition after
another, 25 to each.
"""

import threading
import time
from typing import Any

from confluent_kafka import Producer

from bench.clients import Metrics, Options, client_main

_RUN = 25
_QUEUED_MAX = 90_000  # of 100,000, the default
_PATIENCE_S = 60


class _Load:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._value = b"x" * options["record_bytes"]
        self._start = threading.Barrier(options["producers"])
        self._lock = threading.Lock()
        self.per_s, self.done = 0.0, 0
        self.failure: BaseException | None = None

    def run(self, place: int) -> None:
        try:
            self._run(place)
        except BaseException as error:
            self.failure = error
            self._start.abort()

    def _run(self, place: int) -> None:
        options = self._options
        settings: dict[str, Any] = {"bootstrap.servers": options["address"], "log_level": 3}
        if options["size"]:
            settings["transactional.id"] = f"{options['id']}-{place}"
        producer = Producer({**settings, "enable.idempotence": True})
        if options["size"]:
            producer.init_transactions(_PATIENCE_S)
        producer.list_topics(options["topic"], _PATIENCE_S)
        self._start.wait()
        warm = self._repeat(producer, place, options["warm_up_s"])
        began = time.perf_counter()
        counted = self._repeat(producer, place, options["run_s"])
        took_s = time.perf_counter() - began
        with self._lock:
            self.per_s += counted / took_s
            self.done += warm + counted

    def _repeat(self, producer: Producer, place: int, seconds: float) -> int:
        size, until, done = self._options["size"], time.perf_counter() + seconds, 0
        while done == 0 or time.perf_counter() < until:
            if size:
                producer.begin_transaction()
                for sent in range(0, size, _RUN):
                    self._send(producer, place + sent // _RUN, min(_RUN, size - sent))
                producer.commit_transaction(_PATIENCE_S)
                done += 1
            else:
                self._send(producer, place + done // _RUN, _RUN)
                done += _RUN
        assert producer.flush(_PATIENCE_S) == 0, "some records were not acknowledged"
        return done

    def _send(self, producer: Producer, place: int, count: int) -> None:
        topic, value = self._options["topic"], self._value
        partition = place % self._options["partitions"]
        while len(producer) > _QUEUED_MAX:
            producer.poll(0.01)
        for _ in range(count):
            producer.produce(topic, value, partition=partition)
        producer.poll(0)


def transactions(options: Options) -> Metrics:
    load = _Load(options)
    threads = [threading.Thread(target=load.run, args=(n,)) for n in range(options["producers"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if load.failure is not None:
        raise load.failure
    return {"per_s": load.per_s, "done": load.done}


if __name__ == "__main__":
    client_main(transactions)
