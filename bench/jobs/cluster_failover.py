"""A broker process is killed under load: how long until every partition takes writes again.

Three brokers and three ZooKeeper servers as processes, twelve partitions with three replicas, a
producer that sends a record every few milliseconds with acks=all. Each kill -9 hits a broker that
leads partitions, or the controller. Without Java there is no ZooKeeper, and nothing is measured.
"""

import sys
import time
from functools import partial
from itertools import cycle

from confluent_kafka.admin import AdminClient, NewTopic

from bench.clients import Metrics
from bench.jobs.failover import TOPIC, Stream, wait_a_while
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.servers import SUWI, temporary_directory
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import Layout, broker_name
from suwi.local_cluster.view import View
from suwi.local_cluster.zookeeper import why_unavailable

JOB = "kill -9 of a broker process until all of 12 partitions take writes, 3 processes"
CONTROLLER_JOB = "kill -9 of the controller until all of 12 partitions take writes, 3 processes"
_PARTITIONS = 12
_PORT = 26092
_ADMIN_S = 60
_BALANCE_S = 60
# A restarted broker leads its share again soon, so that the next kill hits leaders.
_SETTINGS = {"leader.imbalance.check.interval.seconds": "1"}


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    missing = why_unavailable()
    if missing is not None:
        print(f"{JOB}: not measured: {missing}", file=sys.stderr)
        return []
    with temporary_directory() as directory:
        cluster = LocalCluster(str(directory))
        # Without proxies, as brokers of a real cluster reach each other.
        try:
            cluster.start(Layout(3, 3, "", _PORT, has_links=False, settings=_SETTINGS))
            _create_topic(cluster.bootstrap_servers)
            others = cycle(cluster.layout.broker_ids)
            return [
                *take_turns(
                    JOB, {SUWI: partial(_kill_next, cluster, others)}, 5 * plan.repetitions
                ),
                *take_turns(
                    CONTROLLER_JOB, {SUWI: partial(_kill_controller, cluster)}, 2 * plan.repetitions
                ),
            ]
        finally:
            cluster.stop()


def _create_topic(servers: str) -> None:
    topic = NewTopic(TOPIC, _PARTITIONS, 3, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    for created in admin.create_topics([topic]).values():
        created.result(_ADMIN_S)


def _kill_next(cluster: LocalCluster, brokers: "cycle[int]") -> Metrics:
    controller = _balanced(cluster).controller
    return _kill(cluster, next(broker for broker in brokers if broker != controller))


def _kill_controller(cluster: LocalCluster) -> Metrics:
    controller = _balanced(cluster).controller
    assert controller is not None
    return _kill(cluster, controller)


def _balanced(cluster: LocalCluster) -> View:
    """The cluster when all replicas are in sync and each broker leads its share."""
    cluster.wait_in_sync()
    found: list[View] = []

    def is_balanced() -> bool:
        found[:] = [view for view in cluster.views().values() if view is not None]
        return bool(found) and all(found[0].led_by(b) for b in cluster.layout.broker_ids)

    cluster.wait(is_balanced, _BALANCE_S, "the leaders are not balanced")
    return found[0]


def _kill(cluster: LocalCluster, broker: int) -> Metrics:
    # A new producer each time, as in `failover`.
    with Stream(cluster.bootstrap_servers, _PARTITIONS).running() as stream:
        wait_a_while(stream)
        killed = time.perf_counter()
        stream.watch(killed)
        cluster.kill(broker_name(broker))
        acknowledged = stream.acknowledged()
    cluster.start_processes([broker_name(broker)])
    return {"all_acks_ms": (acknowledged - killed) * 1000}
