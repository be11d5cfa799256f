"""Raw produce to many partitions in turn, one record at a time: the latency of each.

Every partition gets a record before the measurement, so that none is new to the broker.
"""

import time

from bench.clients import Metrics, Options, client_main
from bench.clients.sockets import Wire
from bench.messages import base_offset, batch_of, produce_request
from bench.processes import Stopwatch

_STRIDE = 7919  # prime: partition after partition, far from the last


def scatter(options: Options) -> Metrics:
    batch, _ = batch_of(options["record_bytes"])
    targets = [
        (topic, partition)
        for partition in range(options["partitions_each"])
        for topic in options["topics"]
    ]
    requests = [produce_request(topic, batch, -1, partition) for topic, partition in targets]
    took_ms = []
    with Wire(options["address"]) as wire:
        for request in requests if options["touch_all"] else requests[:1]:
            wire.first_produce(request)
        watch = Stopwatch(options["server_pids"])
        for number in range(options["records"]):
            request = requests[number * _STRIDE % len(requests)]
            start = time.perf_counter()
            reply = wire.ask(request)
            took_ms.append((time.perf_counter() - start) * 1000)
            assert base_offset(reply) is not None
        metrics = watch.stop()
    cost_us = metrics["server_cpu_s"] / options["records"] * 1e6
    return {"took_ms": took_ms, "server_cpu_us_per_request": cost_us, **metrics}


if __name__ == "__main__":
    client_main(scatter)
