"""Produce to three broker processes, with three replicas."""

import itertools
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.clients import Metrics, Options, run_client
from bench.clients.java import JavaClient, java_client
from bench.clusters import ProcessCluster, can_run_suwi, kafka_cluster, suwi_cluster
from bench.jobs.java import payload_file, produce_once
from bench.measure import Figure, take_turns
from bench.plan import CLUSTER, ClusterPlan, Plan
from bench.servers import KAFKA, Server, temporary_directory

JAVA_JOB = "Java produce, 1000 B records, acks=all, 3 processes, 3 replicas"
LIBRDKAFKA_JOB = "librdkafka produce, 1000 B records, acks=all, 3 processes, 3 replicas"
_RECORD_BYTES = 1_000
_PARTITIONS = 12
_S_MAX = 300
_numbers = itertools.count()


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
