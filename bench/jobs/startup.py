"""From the start of a process on an empty directory to the first acknowledged produce.

Then the broker idles for a while, to measure the cost of that.
"""

import time

from bench.clients import Metrics
from bench.clients.sockets import Wire
from bench.homes import Home, home
from bench.measure import Figure, take_turns
from bench.messages import batch_of, produce_request, request
from bench.plan import Plan
from bench.processes import cpu_s, idle_cpu_percent, rss_mb
from bench.servers import Server
from suwi.wire.versions import ApiKey

JOB = "start to first acknowledged produce, then idle"
_TOPIC = "first"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    runs = {name: lambda name=name: _start_once(plan, name) for name in brokers}
    return take_turns(JOB, runs, plan.starts)


def _start_once(plan: Plan, name: str) -> Metrics:
    with home(name) as place:
        server, metrics = start_and_produce(place, _TOPIC)
        metrics["cpu_percent"] = idle_cpu_percent(server.pid, plan.idle_s)
        metrics["rss_mb"] = rss_mb(server.pid)
    return metrics


def start_and_produce(place: Home, topic: str, batch_bytes: int = 1024) -> tuple[Server, Metrics]:
    """Start a broker; how long until it listens, and until it acknowledged a record.

    As a client does: metadata, which creates the topic if necessary, until a produce is accepted.
    """
    produce = produce_request(topic, batch_of(batch_bytes)[0], -1)
    asked = {
        "topics": [{"name": topic, "topic_id": None}],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }
    metadata = request(ApiKey.METADATA, asked)
    start = time.perf_counter()
    server = place.start()
    listening = time.perf_counter()
    with Wire(server.address) as wire:
        wire.ask(metadata)
        wire.first_produce(produce)
    acknowledged = time.perf_counter()
    return server, {
        "first_ack_ms": (acknowledged - start) * 1000,
        "listening_ms": (listening - start) * 1000,
        "listening_to_ack_ms": (acknowledged - listening) * 1000,
        "cpu_ms": cpu_s(server.pid) * 1000,
    }
