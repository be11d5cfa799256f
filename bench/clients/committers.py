"""Many committers on connections of their own, of one group or of as many, one commit at a time.

The requests are prepared, and of the responses only the size is looked at: the last one is read.
"""

import selectors
import socket
import struct

from bench import group_messages as messages
from bench.clients import Metrics, Options, client_main
from bench.clients.sockets import Wire
from bench.processes import Stopwatch

_SIZE = struct.Struct(">i")


def committers(options: Options) -> Metrics:
    wires = [Wire(options["address"]) for _ in range(options["committers"])]
    requests: dict[socket.socket, bytes] = {}
    sizes: dict[socket.socket, int] = {}
    for number, wire in enumerate(wires):
        group = f"committer-{number}" if options["groups"] > 1 else "committers"
        request = messages.commit(group, options["topic"], 1, 42)
        reply = wire.ask(request)
        assert messages.commit_error(reply) == 0, reply
        requests[wire.socket], sizes[wire.socket] = request, len(reply) + 4
    watch = Stopwatch(options["server_pids"])
    _pump(requests, sizes, options["commits"])
    metrics = watch.stop()
    for wire in wires:
        assert messages.commit_error(wire.ask(requests[wire.socket])) == 0
        wire.socket.close()
    return {
        "commits_per_s": options["commits"] / metrics["wall_s"],
        "server_cpu_us_per_commit": metrics["server_cpu_s"] / options["commits"] * 1e6,
        **metrics,
    }


def _pump(
    requests: dict[socket.socket, bytes], sizes: dict[socket.socket, int], total: int
) -> None:
    got = dict.fromkeys(requests, 0)
    buffer = bytearray(1 << 16)
    sent = answered = 0
    with selectors.DefaultSelector() as selector:
        for each, request in requests.items():
            selector.register(each, selectors.EVENT_READ)
            each.sendall(request)
            sent += 1
        while answered < sent:
            for key, _ in selector.select():
                each = key.fileobj
                assert isinstance(each, socket.socket)
                count = each.recv_into(buffer)
                if not count:
                    raise ConnectionError("the server closed the connection")
                got[each] += count
                if got[each] >= sizes[each]:
                    got[each] = 0
                    answered += 1
                    if sent < total:
                        each.sendall(requests[each])
                        sent += 1


if __name__ == "__main__":
    client_main(committers)
