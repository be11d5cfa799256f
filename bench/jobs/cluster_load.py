"""Produce to broker processes: three replicas beside Apache Kafka's, and more processes on a host.

Clients and brokers share the machine's cores, so that more processes help only as long as one
broker's core is the limit.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.clients import Metrics, Options, run_client
from bench.clients.java import JavaClient, java_client
from bench.clusters import ProcessCluster, can_run_suwi, kafka_cluster, suwi_cluster
from bench.jobs.java import payload_file, produce_once
from bench.measure import Figure, take_turns
from bench.plan import CLUSTER, ClusterPlan, Plan
from bench.processes import Stopwatch
from bench.servers import KAFKA, SUWI, Server, temporary_directory

JAVA_JOB = "Java produce, 1000 B records, acks=all, 3 processes, 3 replicas"
LIBRDKAFKA_JOB = "librdkafka produce, 1000 B records, acks=all, 3 processes, 3 replicas"
PRODUCERS = 2
_RECORD_BYTES = 1_000
_PARTITIONS = 12
_PROCESSES_PORT, _PORTS_EACH = 17092, 1_000
_S_MAX = 300
_numbers = itertools.count()


def processes_job(count: int) -> str:
    return f"one host, {count} broker process{'es' if count > 1 else ''}, one replica"


def measure_replicated(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    """Both clusters run at the same time and take turns."""
    how_much = CLUSTER[plan.name]
    with ExitStack() as stack:
        java = stack.enter_context(java_client()) if KAFKA in brokers else None
        clusters: list[ProcessCluster] = []
        if can_run_suwi():
            clusters.append(stack.enter_context(suwi_cluster()))
        if java is not None:
            clusters.append(stack.enter_context(kafka_cluster(java)))
        servers = {cluster.name: cluster.server for cluster in clusters}
        figures = _race(how_much, LIBRDKAFKA_JOB, servers, None)
        if java is not None:
            figures += _race(how_much, JAVA_JOB, servers, java)
    return figures


def _race(
    plan: ClusterPlan, job: str, servers: dict[str, Server], java: JavaClient | None
) -> list[Figure]:
    with temporary_directory() as directory:
        payload = payload_file(directory, _RECORD_BYTES)
        runs = {
            name: partial(_replicate, plan, server, java, payload)
            for name, server in servers.items()
        }
        return take_turns(job, runs, plan.repetitions, warm_ups=plan.warm_ups, s_max=_S_MAX)


def _replicate(
    plan: ClusterPlan, server: Server, java: JavaClient | None, payload: Path
) -> Metrics:
    topic = f"replicated-{next(_numbers)}"
    server.make_topic(topic, _PARTITIONS, replicas=3, min_insync_replicas="2")
    if java is None:
        metrics = run_client("librdkafka", _options(server, topic, plan.records))
    else:
        metrics = produce_once(server, java, topic, payload, _RECORD_BYTES, plan.records)
    server.drop_topic(topic)
    return metrics


def _options(server: Server, topic: str, records: int) -> Options:
    return {
        **server.target,
        "work": "produce",
        "topic": topic,
        "partitions": _PARTITIONS,
        "record_bytes": _RECORD_BYTES,
        "records": records,
        "settings": {},
    }


def measure_processes(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    """Clusters of one, two and more brokers with one ensemble run at the same time in turns."""
    how_much = CLUSTER[plan.name]
    if not can_run_suwi():
        return []
    with ExitStack() as stack:
        clusters: dict[int, ProcessCluster] = {}
        ensemble = ""
        for count, port in zip(how_much.processes, _ports(), strict=False):
            path = f"{ensemble}/brokers-{count}" if ensemble else ""
            made = stack.enter_context(suwi_cluster(count, ensemble=path, port=port))
            ensemble = ensemble or made.ensemble
            clusters[count] = made
        runs = {str(n): partial(_load, how_much, made.server) for n, made in clusters.items()}
        figures = take_turns(
            "one host, several broker processes",
            runs,
            how_much.repetitions,
            warm_ups=how_much.warm_ups,
            s_max=_S_MAX,
        )
    for count, figure in zip(clusters, figures, strict=True):
        figure.job, figure.system = processes_job(count), SUWI
    return figures


def _ports() -> Iterator[int]:
    return itertools.count(_PROCESSES_PORT, _PORTS_EACH)


def _load(plan: ClusterPlan, server: Server) -> Metrics:
    topic = f"shared-{next(_numbers)}"
    server.make_topic(topic, _PARTITIONS)
    options = _options(server, topic, plan.records)
    watch = Stopwatch(server.pids)
    with ThreadPoolExecutor(PRODUCERS) as pool:
        found = list(pool.map(partial(run_client, "librdkafka"), [options] * PRODUCERS))
    cpu_s = watch.stop()["server_cpu_s"]
    server.drop_topic(topic)
    return {
        "records_per_s": sum(metrics["records_per_s"] for metrics in found),
        "server_cpu_s_per_million": cpu_s / (plan.records * PRODUCERS) * 1e6,
    }
