"""Raw fetch: prepared requests for each MiB of a topic; the records are discarded."""

import itertools
import struct

from bench.clients import Metrics, Options, client_main
from bench.clients.sockets import Wire
from bench.messages import FETCH_VERSION, fetch_request
from bench.processes import Stopwatch
from suwi.wire.fetch_response import decode_fetch_response
from suwi.wire.headers import read_response_header
from suwi.wire.versions import ApiKey

FETCH_BYTES = 1024 * 1024
_UNDER_WAY = 4
_read_size = struct.Struct(">i").unpack_from


def drain(options: Options) -> Metrics:
    """Fetch `fetches` times from a topic that has `pieces` of `piece_records` records each."""
    requests = [
        fetch_request(options["topic"], number * options["piece_records"], FETCH_BYTES)
        for number in range(options["pieces"])
    ]
    total = options["fetches"]
    with Wire(options["address"]) as wire:
        if options["checks"]:
            for request in (requests[0], requests[-1]):
                assert _record_bytes(wire.ask(request)) == FETCH_BYTES
        watch = Stopwatch(options["server_pids"])
        received = _pump(wire, requests, total)
        metrics = watch.stop()
    assert received >= total * FETCH_BYTES, "a reply came without its records"
    gigabytes = total * FETCH_BYTES / 1e9
    return {
        "gb_per_s": gigabytes / metrics["wall_s"],
        "requests_per_s": total / metrics["wall_s"],
        "server_cpu_s_per_gb": metrics["server_cpu_s"] / gigabytes,
        "server_cpu_us_per_request": metrics["server_cpu_s"] / total * 1e6,
        "server_busy": metrics["server_cpu_s"] / metrics["wall_s"],
        **metrics,
    }


def _pump(wire: Wire, requests: list[bytes], total: int) -> int:
    """Keep some fetches in flight; count responses by their sizes and discard their content."""
    following = itertools.cycle(requests)
    view = memoryview(bytearray(1 << 20))
    receive_into = wire.socket.recv_into
    for _ in range(_UNDER_WAY):
        wire.send(next(following))
    sent, answered, received = _UNDER_WAY, 0, 0
    while answered < total:
        (left,) = _read_size(wire.exactly(4))
        received += left
        while left:
            count = receive_into(view[: min(left, len(view))])
            if not count:
                raise ConnectionError("the server closed the connection")
            left -= count
        answered += 1
        if sent < total:
            wire.send(next(following))
            sent += 1
    return received


def _record_bytes(reply: bytes) -> int:
    _, body_at = read_response_header(ApiKey.FETCH, FETCH_VERSION, reply)
    answer = decode_fetch_response(FETCH_VERSION, reply, body_at).topics[0].partitions[0]
    assert answer.error_code == 0, f"error {answer.error_code}"
    assert isinstance(answer.records, memoryview)
    return len(answer.records)


if __name__ == "__main__":
    client_main(drain)
