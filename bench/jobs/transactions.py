"""Transactional against idempotent producers: the share of throughput kept, and transactions/s.

One broker of each kind, with its default settings. Clients before Kafka 4 (TV1: librdkafka, and
Java with the cluster's `transaction.version` at 1) announce each partition to the coordinator;
newer ones (TV2) do it with their records. A share is that of two neighbours, a run with and one
without transactions.
"""

import itertools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from bench.clients import Metrics, Options, run_client
from bench.clients.java import JavaClient, java_client
from bench.homes import homes
from bench.measure import Figure, take_turns
from bench.plan import TRANSACTIONS, Plan, TransactionsPlan
from bench.processes import Stopwatch
from bench.servers import KAFKA, Server

RECORD_BYTES = 1_000
PARTITIONS = 4
MANY_PARTITIONS = 10
"""For many producers: each writes to one of them."""
_FEATURE = "transaction.version"
_numbers = itertools.count()

Produce = Callable[[Options], tuple[float, int]]
"""Transactions (or records) a second, and how many there were in all."""


class Driver(NamedTuple):
    name: str
    is_java: bool
    level: int
    """The cluster's transaction.version."""


DRIVERS = (
    Driver("Java, TV2", is_java=True, level=2),
    Driver("Java, TV1", is_java=True, level=1),
    Driver("librdkafka, TV1", is_java=False, level=1),
)


def share_job(driver: Driver) -> str:
    return f"transactional against idempotent, {driver.name}"


def rate_job(driver: Driver, producers: int) -> str:
    return f"transactions of one record, {producers} producers, {driver.name}"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    how_much = TRANSACTIONS[plan.name]
    figures: list[Figure] = []
    with homes(brokers) as places, ExitStack() as stack:
        # Without Apache Kafka's jars there are no Java clients either.
        java = stack.enter_context(java_client()) if KAFKA in brokers else None
        servers = {name: place.start() for name, place in places.items()}
        for driver in DRIVERS:
            if driver.is_java and java is None:
                continue
            if java is not None:
                for server in servers.values():
                    java.finalize(server.address, _FEATURE, driver.level)
            figures += _measure(how_much, driver, _produce_with(driver, java), servers)
    return figures


def _produce_with(driver: Driver, java: JavaClient | None) -> Produce:
    if driver.is_java:
        assert java is not None
        return java.transactions

    def produce(options: Options) -> tuple[float, int]:
        found = run_client("librdkafka_transactions", options)
        return found["per_s"], found["done"]

    return produce


def _measure(
    plan: TransactionsPlan, driver: Driver, produce: Produce, servers: dict[str, Server]
) -> list[Figure]:
    runs = {name: partial(_share, plan, produce, server) for name, server in servers.items()}
    figures = take_turns(share_job(driver), runs, plan.repetitions, warm_ups=plan.warm_ups)
    for producers in plan.producers:
        runs = {n: partial(_rate, plan, produce, s, producers) for n, s in servers.items()}
        job = rate_job(driver, producers)
        figures += take_turns(job, runs, plan.repetitions, warm_ups=plan.warm_ups)
    return figures


def _share(plan: TransactionsPlan, produce: Produce, server: Server) -> Metrics:
    def once(size: int) -> Metrics:
        return _once(plan, produce, server, producers=1, size=size, partitions=PARTITIONS)

    idempotent = once(0)["per_s"]
    metrics: Metrics = {"idempotent_per_s": idempotent}
    for size in plan.sizes:
        found = once(size)
        records_per_s = found["per_s"] * size
        metrics[f"records_per_s_{size}"] = records_per_s
        metrics[f"kept_percent_{size}"] = records_per_s / idempotent * 100
        metrics[f"server_cpu_us_{size}"] = found["server_cpu_us"]
    return metrics


def _rate(plan: TransactionsPlan, produce: Produce, server: Server, producers: int) -> Metrics:
    found = _once(plan, produce, server, producers=producers, size=1, partitions=MANY_PARTITIONS)
    return {"transactions_per_s": found["per_s"], "server_cpu_us": found["server_cpu_us"]}


def _once(
    plan: TransactionsPlan,
    produce: Produce,
    server: Server,
    *,
    producers: int,
    size: int,
    partitions: int,
) -> Metrics:
    name = f"transactions-{next(_numbers)}"
    server.make_topic(name, partitions)
    watch = Stopwatch(server.pids)
    options: Options = {
        "address": server.address,
        "topic": name,
        "partitions": partitions,
        "producers": producers,
        "size": size,
        "record_bytes": RECORD_BYTES,
        "id": name,
        "warm_up_s": plan.warm_up_s,
        "run_s": plan.run_s,
    }
    try:
        per_s, done = produce(options)
    except RuntimeError as error:
        # Seen of Apache Kafka: an idempotent producer that gets no answer for two minutes.
        print(f"{server.name}, {name}, once more: {error}", file=sys.stderr)
        per_s, done = produce(options)
    cpu_s = watch.stop()["server_cpu_s"]
    server.drop_topic(name)
    return {"per_s": per_s, "server_cpu_us": cpu_s / done * 1e6}
