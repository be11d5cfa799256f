"""A small producer: one record at fixed times, and the time of each from when it was due.

While one waits the next become due, and their waiting counts, too: a stall counts for every record
that was due in it. It works between `begin` and `end` (`bench.watch.commands`).
"""

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.clients.sockets import Wire
from bench.measure import percentile
from bench.messages import base_offset, batch_of, produce_request
from bench.watch.commands import answer

_RECORD_BYTES = 200
_PATIENCE_S = 600


def ping(
    ask: Callable[[bytes], bytes], request: bytes, every_s: float, is_over: Callable[[], bool]
) -> list[float]:
    """The time of each record, in milliseconds."""
    took_ms = []
    due = time.perf_counter()
    while not is_over():
        due += every_s
        wait_s = due - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        reply = ask(request)
        took_ms.append((time.perf_counter() - due) * 1000)
        assert base_offset(reply) is not None, "the partition is led no more"
    return took_ms


def _has_command() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def summary(took_ms: list[float]) -> dict[str, Any]:
    return {
        "pings": len(took_ms),
        "p50_ms": percentile(took_ms, 0.5),
        "p99_ms": percentile(took_ms, 0.99),
        "p999_ms": percentile(took_ms, 0.999),
        "max_ms": max(took_ms),
    }


def main() -> None:
    options = json.loads(sys.argv[1])
    request = produce_request(options["topic"], batch_of(_RECORD_BYTES)[0], -1)
    took_ms: list[float] = []
    with Wire(options["address"]) as wire:
        wire.socket.settimeout(_PATIENCE_S)
        wire.first_produce(request)
        while command := sys.stdin.readline().strip():
            if command == "begin":
                answer(None)
                took_ms = ping(wire.ask, request, options["every_s"], _has_command)
            else:
                answer(summary(took_ms))


if __name__ == "__main__":
    main()
