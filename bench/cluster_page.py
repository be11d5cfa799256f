"""The page on clusters of processes: as JSON, a table and a chart."""

from collections.abc import Iterable

from bench.jobs import cluster_failover, cluster_load, cluster_size
from bench.lines import Line, line_page
from bench.plan import CLUSTER, ClusterPlan

_LED_S_MAX = 2


def _lines() -> Iterable[Line]:
    yield from _replicated()
    yield from _kills()
    for plan in CLUSTER.values():
        yield from _of_plan(plan)


def _replicated() -> Iterable[Line]:
    for name, job in (
        ("librdkafka", cluster_load.LIBRDKAFKA_JOB),
        ("Java", cluster_load.JAVA_JOB),
    ):
        text = f"produce, three replicas, {name}"
        yield Line(text, job, "records_per_s", "records/s", 1.0, of_kafka=True, more=True)
        cpu = f"{text}: CPU of all brokers, a million records"
        yield Line(cpu, job, "server_cpu_s_per_million", "s CPU")


def _kills() -> Iterable[Line]:
    job = cluster_failover.KILL_JOB
    kill = "kill -9 until every partition takes writes"
    yield Line(kill, job, "all_acks_ms", "ms", 500)
    yield Line(f"{kill}, maximum", job, "all_acks_ms", "ms", worst=True)
    yield Line("kill -9 of the controller, the same", job, "controller_all_acks_ms", "ms", 500)
    yield Line("kill -9 of another broker, the same", job, "other_all_acks_ms", "ms", 500)
    left_out = cluster_failover.LEFT_OUT
    yield Line("kills that there was no time for", job, left_out, "kills", 0, worst=True)
    roll = cluster_failover.ROLL_JOB
    yield Line("rolling restart: longest silence", roll, "silence_ms", "ms", 1.0, of_kafka=True)
    yield Line("rolling restart", roll, "roll_s", "s")
    vanished = cluster_failover.VANISHED_JOB
    limit = cluster_failover.SESSION_S + 1
    yield Line(
        "a host vanishes, until all take writes, maximum",
        vanished,
        "all_acks_s",
        "s",
        limit,
        worst=True,
    )
    yield Line("a host vanishes, until all take writes", vanished, "all_acks_s", "s", limit)


def _of_plan(plan: ClusterPlan) -> Iterable[Line]:
    text = f"{plan.groups:,} groups, coordinator killed: commit"
    job = cluster_failover.coordinator_job(plan.groups)
    yield Line(text, job, "first_commit_ms", "ms", 1_000)
    text, job = f"{plan.leaders:,} leaders die: all led", cluster_size.leaders_job(plan.leaders)
    yield Line(text, job, "all_led_s", "s", _LED_S_MAX)
    job = cluster_size.start_job(plan.partitions)
    start = f"start with {plan.partitions:,} partitions"
    yield Line(f"{start}, in sync", job, "in_sync_s", "s", 1.0, of_kafka=True)
    yield Line(f"creating {plan.partitions:,} partitions", job, "create_s", "s")
    for count in plan.processes:
        job = cluster_load.processes_job(count)
        text = f"{count} broker process{'es' if count > 1 else ''}, one replica"
        yield Line(text, job, "records_per_s", "records/s")
        cpu = f"{text}: CPU of all brokers, a million records"
        yield Line(cpu, job, "server_cpu_s_per_million", "s CPU")


CLUSTER_PAGE = line_page(
    "cluster",
    "A cluster of processes",
    _lines,
    {
        "ms": "Fail-over (less is better, logarithmic)",
        "s": "Many partitions, lost hosts, starts (less is better, logarithmic)",
        "records/s": "Throughput (more is better)",
    },
    {"ms": 10, "s": 0.01},
)
