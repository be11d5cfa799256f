"""A small producer alone, and beside a client that uses all of the broker's capacity.

Suwi first, then Apache Kafka, never both at once. In every repetition the small producer is
measured alone and beside each greedy client, so that the figures of one broker are comparable.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.beside import recorded
from bench.clients import Metrics, Options
from bench.homes import home
from bench.jobs import raw
from bench.measure import Figure, take_turns
from bench.plan import FAIRNESS, KIB, FairnessPlan, Plan
from bench.recorders import Recorder, pinger, recorder
from bench.servers import Server
from bench.works import make_many

ALONE = "alone"
GREEDY = {
    "a greedy producer": "produce",
    "a greedy consumer": "consume",
    "an administrator": "administer",
}
_PING_TOPIC, _IN, _OUT = "ping", "in", "out"
_PIECES = 64
_BATCH_BYTES = 16 * KIB
_UNDER_WAY = {"produce": 64, "consume": 4, "administer": 100}
# What a greedy producer writes is deleted: the disk is not measured.
_SETTINGS = {"log_retention_check_interval_ms": "1000"}
_IN_SETTINGS = {"segment_bytes": str(64 << 20), "retention_bytes": str(256 << 20)}


def job(who: str) -> str:
    return f"small producer {ALONE}" if who == ALONE else f"small producer beside {who}"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    figures = []
    for system in brokers:
        with home(system, **_SETTINGS) as place:
            figures += _measure(FAIRNESS[plan.name], place.start())
    return figures


def _measure(plan: FairnessPlan, server: Server) -> list[Figure]:
    server.make_topic(_PING_TOPIC)
    server.make_topic(_IN, 1, **_IN_SETTINGS)
    raw.load(server, _OUT, _PIECES, _BATCH_BYTES)
    topics = make_many(server, plan.partitions)
    base: Options = {"address": server.address, "connections": plan.connections}
    base |= {"batch_bytes": _BATCH_BYTES, "pieces": _PIECES, "topics": topics}

    with pinger(server.address, _PING_TOPIC, plan.ping_every_s) as ping:

        def beside(work: str | None) -> Metrics:
            with ExitStack() as stack:
                recorders = {"ping": ping}
                if work is not None:
                    recorders["greedy"] = stack.enter_context(_greedy(work, base))
                heard, _ = recorded(recorders, lambda: None, plan.section_s)
            got = {f"greedy_{name}": n for name, n in heard.get("greedy", {}).items()}
            return {f"ping_{name}": value for name, value in heard["ping"].items()} | got

        runs = {job(ALONE): partial(beside, None)}
        runs |= {job(who): partial(beside, work) for who, work in GREEDY.items()}
        name = f"fairness of {server.name}"
        figures = take_turns(name, runs, plan.repetitions, warm_ups=plan.warm_ups)
    for figure in figures:
        figure.job, figure.system = figure.system, server.name
    return figures


@contextmanager
def _greedy(work: str, base: Options) -> Iterator[Recorder]:
    topic = _IN if work == "produce" else _OUT
    options = {**base, "work": work, "topic": topic, "under_way": _UNDER_WAY[work]}
    with recorder("bench.clients.greedy", options) as running:
        running.begin()  # returns when all its connections are open
        yield running
