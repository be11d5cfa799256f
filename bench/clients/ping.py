"""Raw latency: a produce on one connection, a waiting fetch on another, one record at a time."""

import time

from bench.clients import Metrics, Options, client_main
from bench.clients.sockets import Wire
from bench.messages import batch_of, fetch_request, produce_request


def ping(options: Options) -> Metrics:
    topic = options["topic"]
    batch, records = batch_of(options["record_bytes"])
    request = produce_request(topic, batch, options["acks"])
    took_ms = []
    with Wire(options["address"]) as producer, Wire(options["address"]) as consumer:
        if options["checks"]:
            producer.first_produce(request)
        else:
            producer.ask(request)
        for number in range(options["warm_up"] + options["records"]):
            consumer.send(
                fetch_request(topic, (number + 1) * records, 1024 * 1024, max_wait_ms=10_000)
            )
            time.sleep(options["pause_s"])  # by then the fetch is waiting
            start = time.perf_counter()
            producer.send(request)
            consumer.reply()
            arrived = time.perf_counter()
            producer.reply()
            if number >= options["warm_up"]:
                took_ms.append((arrived - start) * 1000)
    return {"took_ms": took_ms}


if __name__ == "__main__":
    client_main(ping)
