"""A client that uses all of a broker's capacity: a producer, a consumer, an administrator.

Several connections, each with many requests in flight, until standard input ends. Between `begin`
and `end` (`bench.watch.commands`) it counts the responses.
"""

import itertools
import json
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import admin
from bench.clients import Options
from bench.clients.drain import FETCH_BYTES
from bench.clients.sockets import Wire
from bench.messages import batch_of, fetch_request, produce_request
from bench.watch.commands import obey

_PATIENCE_S = 600
_read_size = struct.Struct(">i").unpack


def produce(options: Options) -> list[bytes]:
    batch, _ = batch_of(options["batch_bytes"])
    return [produce_request(options["topic"], batch, -1)]


def consume(options: Options) -> list[bytes]:
    """MiB after MiB of a topic, again and again."""
    _, records = batch_of(options["batch_bytes"])
    each = FETCH_BYTES // options["batch_bytes"] * records
    return [
        fetch_request(options["topic"], piece * each, FETCH_BYTES)
        for piece in range(options["pieces"])
    ]


def administer(options: Options) -> list[bytes]:
    topics = options["topics"]
    return [
        admin.describe_broker(),
        admin.metadata_of_everything(),
        admin.describe_topics(topics),
        admin.describe_log_dirs(),
        admin.list_offsets(topics),
    ]


WORKS: dict[str, Callable[[Options], list[bytes]]] = {
    "produce": produce,
    "consume": consume,
    "administer": administer,
}


class _Got:
    """Responses and their bytes, over all connections; the GIL protects the counters."""

    def __init__(self) -> None:
        self.replies = self.bytes = 0
        self._since = (0, 0, time.perf_counter())

    def begin(self) -> None:
        self._since = (self.replies, self.bytes, time.perf_counter())

    def end(self) -> dict[str, Any]:
        replies, size, began = self._since
        took_s = time.perf_counter() - began
        return {
            "replies_per_s": (self.replies - replies) / took_s,
            "mb_per_s": (self.bytes - size) / took_s / 1e6,
        }


def want(wire: Wire, requests: Sequence[bytes], under_way: int, got: _Got) -> None:
    following = itertools.cycle(requests)
    scratch = memoryview(bytearray(1 << 20))
    for _ in range(under_way):
        wire.send(next(following))
    while True:
        (size,) = _read_size(wire.exactly(4))
        left = size
        while left:
            count = wire.socket.recv_into(scratch[: min(left, len(scratch))])
            if not count:
                return
            left -= count
        got.replies += 1
        got.bytes += size
        wire.send(next(following))


def main() -> None:
    options = json.loads(sys.argv[1])
    requests = WORKS[options["work"]](options)
    got = _Got()
    for _ in range(options["connections"]):
        wire = Wire(options["address"])
        wire.socket.settimeout(_PATIENCE_S)
        arguments = (wire, requests, options["under_way"], got)
        threading.Thread(target=want, args=arguments, daemon=True).start()
    obey(got)


if __name__ == "__main__":
    main()
