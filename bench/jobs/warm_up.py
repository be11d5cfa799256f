"""Before the first job: every broker and the clients' JVM work for a while, unmeasured.

A JVM compiles what it runs often; one that has just started would not be comparable.
"""

import sys
import time

from bench.jobs import java, raw
from bench.plan import KIB
from bench.rig import Rig

_REQUESTS = 5_000
_RECORDS = 100_000
_RECORD_BYTES = 1_000
_PIECES = 64


def everything(rig: Rig) -> None:
    print(f"warming up for {rig.plan.warm_up_s:.0f} s each", file=sys.stderr)
    for server in rig.servers.values():
        topic = rig.new_topic()
        raw.load(server, topic, _PIECES)
        until = time.monotonic() + rig.plan.warm_up_s
        while time.monotonic() < until:
            raw.produce(server, topic, 16 * KIB, _REQUESTS)
            raw.fetch(server, topic, _PIECES, 16 * KIB, _PIECES)
            if rig.java is not None:
                payload = java.payload_file(rig.work_dir, _RECORD_BYTES)
                java.produce_once(server, rig.java, topic, payload, _RECORD_BYTES, _RECORDS)
                rig.java.consume(server.address, topic, _RECORDS, 1)
        server.drop_topic(topic)
