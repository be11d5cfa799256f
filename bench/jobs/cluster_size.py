"""Many partitions on three broker processes: one with all leaders dies, and a cold start."""

import time
from functools import partial

from bench.clients import Metrics
from bench.clusters import ProcessCluster, on_each, wait_for
from bench.measure import Figure, take_turns
from bench.plan import CLUSTER, ClusterPlan, Plan
from bench.servers import SUWI

_TOPIC = "wide"
_TOPIC_PARTITIONS_MAX = 1_000
_S_MAX = 300


def leaders_job(leaders: int) -> str:
    return f"kill -9 of a broker process that leads {leaders:,} partitions"


def start_job(partitions: int) -> str:
    return f"start of three processes with {partitions:,} partitions, three replicas each"


def measure_leaders(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    return on_each(brokers, partial(_kill_leaders, CLUSTER[plan.name]))


def measure_start(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    return on_each(brokers, partial(_starts, CLUSTER[plan.name]), settings={})


def _kill_leaders(plan: ClusterPlan, cluster: ProcessCluster) -> list[Figure]:
    _create(cluster, plan.leaders, are_led_by_first=True)
    times = plan.leader_kills[0 if cluster.name == SUWI else 1]
    runs = {cluster.name: partial(_kill_leader, cluster, plan.leaders)}
    return take_turns(leaders_job(plan.leaders), runs, times, warm_ups=0, s_max=_S_MAX)


def _create(cluster: ProcessCluster, partitions: int, *, are_led_by_first: bool) -> None:
    replicas = cluster.brokers if are_led_by_first else None
    for first in range(0, partitions, _TOPIC_PARTITIONS_MAX):
        count = min(_TOPIC_PARTITIONS_MAX, partitions - first)
        cluster.create_topic(f"{_TOPIC}-{first}", count, replicas=replicas)
    cluster.wait_until_healthy()


def _kill_leader(cluster: ProcessCluster, leaders: int) -> Metrics:
    first, *others = cluster.brokers

    def leads_all() -> bool:
        view = cluster.views([first])[first]
        return view is not None and view.led_by(first) >= leaders

    cluster.wait_until_healthy()
    wait_for(leads_all, f"broker {first} does not lead all partitions")
    killed = time.perf_counter()
    cluster.kill(first)

    def all_are_led() -> bool:
        """By another broker, as both of them say."""
        return all(
            view is not None and len(view.leaders) == view.partitions and not view.led_by(first)
            for view in cluster.views(others).values()
        )

    wait_for(all_are_led, "some partitions have no leader")
    led = time.perf_counter()
    cluster.restart(first)
    return {"all_led_s": led - killed}


def _starts(plan: ClusterPlan, cluster: ProcessCluster) -> list[Figure]:
    start = time.perf_counter()
    _create(cluster, plan.partitions, are_led_by_first=False)
    create_s = time.perf_counter() - start
    times = plan.starts[0 if cluster.name == SUWI else 1]
    runs = {cluster.name: partial(_start, cluster)}
    figures = take_turns(start_job(plan.partitions), runs, times, warm_ups=0, s_max=_S_MAX)
    figures[0].add({"create_s": create_s})
    return figures


def _start(cluster: ProcessCluster) -> Metrics:
    """After a clean stop, of controllers or ZooKeeper too; until all is in sync everywhere."""
    cluster.stop_everything()
    start = time.perf_counter()
    cluster.start_everything()
    cluster.wait_until_healthy()
    return {"in_sync_s": time.perf_counter() - start}
