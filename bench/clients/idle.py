"""Many connections that send one request and then nothing, until standard input ends."""

import json
import resource
import struct
import sys

from bench.clients.sockets import Wire
from bench.messages import frame

_API_VERSIONS = struct.pack(">hhih", 18, 0, 0, -1)


def main() -> None:
    options = json.loads(sys.argv[1])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, options["connections"] + 100), hard))
    wires = []
    for _ in range(options["connections"]):
        wire = Wire(options["address"])
        wire.ask(frame(_API_VERSIONS))
        wires.append(wire)
    print(json.dumps({"open": len(wires)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
