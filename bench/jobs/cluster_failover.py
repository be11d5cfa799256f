"""A broker process is killed under load: how long until all is well again.

Three broker processes, twelve partitions with three replicas, a producer that sends a record every
few milliseconds with acks=all. Suwi has three ZooKeeper servers beside it; without Java there are
none, and nothing is measured. Apache Kafka's processes run after Suwi's, not beside them.
"""

import os
import signal
import time
from functools import partial
from itertools import count

from bench.clients import Metrics
from bench.clients.stream import TOPIC, Stream, wait_a_while
from bench.clusters import ProcessCluster, can_run_suwi, on_each, suwi_cluster
from bench.jobs import groups
from bench.measure import Figure, take_turns
from bench.plan import CLUSTER, ClusterPlan, Plan
from bench.servers import SUWI

KILL_JOB = "kill -9 of one of three broker processes"
LEFT_OUT = "left_out"
"""How many kills there was no time for."""
ROLL_JOB = "rolling restart of three broker processes"
_PARTITIONS = 12
_CONTROLLER_EVERY = 3
_KILLS_S_MAX, _S_MAX = 600, 300


def coordinator_job(how_many: int) -> str:
    return f"kill -9 of the process that coordinates a third of {how_many:,} groups"


def measure_kills(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    return on_each(brokers, partial(_kills_and_rolls, CLUSTER[plan.name]))


def _kills_and_rolls(plan: ClusterPlan, cluster: ProcessCluster) -> list[Figure]:
    which = 0 if cluster.name == SUWI else 1
    cluster.create_topic(TOPIC, _PARTITIONS)
    kill = {cluster.name: partial(_kill, cluster, count())}
    roll = {cluster.name: partial(_roll, cluster)}
    wanted = plan.kills[which]
    kills = take_turns(KILL_JOB, kill, wanted, warm_ups=0, s_max=_KILLS_S_MAX)
    for figure in kills:
        figure.add({LEFT_OUT: wanted - len(figure.values["all_acks_ms"])})
    return [
        *kills,
        *take_turns(ROLL_JOB, roll, plan.rolls[which], warm_ups=0, s_max=_S_MAX),
    ]


def _kill(cluster: ProcessCluster, numbers: "count[int]") -> Metrics:
    """Every third kill hits the active controller, the others a broker that is not it."""
    cluster.wait_until_balanced(TOPIC)
    number, controller = next(numbers), cluster.controller()
    others = [broker for broker in cluster.brokers if broker != controller]
    hits_controller = number % _CONTROLLER_EVERY == 0
    broker = controller if hits_controller else others[number % len(others)]
    pid = cluster.pid(broker)
    # A new producer each time: one whose broker was killed waits longer and longer before it
    # connects to that one again.
    with Stream(cluster.bootstrap_servers, _PARTITIONS).running() as stream:
        wait_a_while(stream)
        killed = time.perf_counter()
        stream.watch(killed)
        os.kill(pid, signal.SIGKILL)  # nothing that is sent later reaches this broker
        took_ms = (stream.acknowledged() - killed) * 1000
    cluster.restart(broker)
    kind = "controller" if hits_controller else "other"
    return {"all_acks_ms": took_ms, f"{kind}_all_acks_ms": took_ms}


def _roll(cluster: ProcessCluster) -> Metrics:
    cluster.wait_until_balanced(TOPIC)
    with Stream(cluster.bootstrap_servers, _PARTITIONS).running() as stream:
        wait_a_while(stream)
        started = time.perf_counter()
        stream.watch(started)
        cluster.roll()
        took_s = time.perf_counter() - started
        wait_a_while(stream)
        silence_ms = stream.silence_s() * 1000
    return {"silence_ms": silence_ms, "roll_s": took_s}


def measure_coordinator(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    if not can_run_suwi():
        return []
    how_many = CLUSTER[plan.name]
    with suwi_cluster() as cluster:
        job = coordinator_job(how_many.groups)
        return groups.fail_over(
            cluster, job, how_many.groups, how_many.group_kills, warm_ups=how_many.warm_ups
        )
