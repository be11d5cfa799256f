"""Raw produce: the same prepared request again and again, many of them in flight at a time.

Nothing is encoded or decoded meanwhile, so that the client costs as little as possible in Python.
"""

from bench.clients import Metrics, Options, client_main
from bench.clients.sockets import Wire
from bench.measure import warm_page_cache
from bench.messages import base_offset, batch_of, produce_request
from bench.processes import Stopwatch

_BLOCK_BYTES = 256 * 1024
_UNDER_WAY_BYTES = 4 * 1024 * 1024
_UNDER_WAY_MAX = 800


def replay(options: Options) -> Metrics:
    batch, records = batch_of(options["batch_bytes"])
    request = produce_request(options["topic"], batch, options["acks"])
    per_block = max(1, _BLOCK_BYTES // len(request))
    total = -(-options["requests"] // per_block) * per_block
    with Wire(options["address"]) as wire:
        first = wire.first_produce(request) if options["checks"] else wire.ask(request)
        first_offset = base_offset(first) if options["checks"] else None
        warm_page_cache(total * len(batch) * 5 // 4)
        watch = Stopwatch(options["server_pids"])
        _pump(wire, request * per_block, per_block, total, len(first) + 4)
        metrics = watch.stop()
        if first_offset is not None:
            expected = first_offset + records * (total + 1)
            assert base_offset(wire.ask(request)) == expected, "a batch is missing"
    wall_s = metrics["wall_s"]
    return {
        "requests_per_s": total / wall_s,
        "mb_per_s": total * len(batch) / wall_s / 1e6,
        "server_cpu_us_per_request": metrics["server_cpu_s"] / total * 1e6,
        "server_busy": metrics["server_cpu_s"] / wall_s,
        **metrics,
    }


def _pump(wire: Wire, block: bytes, per_block: int, total: int, reply_bytes: int) -> None:
    under_way_max = max(
        2 * per_block, min(_UNDER_WAY_MAX, _UNDER_WAY_BYTES * per_block // len(block))
    )
    replies = bytearray(1 << 20)
    send, receive_into = wire.socket.sendall, wire.socket.recv_into
    sent = answered = received = 0
    while answered < total:
        while sent < total and sent - answered + per_block <= under_way_max:
            send(block)
            sent += per_block
        count = receive_into(replies)
        if not count:
            raise ConnectionError("the server closed the connection")
        received += count
        answered = received // reply_bytes


if __name__ == "__main__":
    client_main(replay)
