"""Whether a cluster, or one of its brokers, is healthy: `problems` says what makes it degraded."""

from collections.abc import Iterator
from typing import NamedTuple

from suwi.admin.text import count_text, names_text
from suwi.client.cluster import Cluster
from suwi.client.cluster_status import (
    ALIVE,
    BrokerProblem,
    BrokerStatus,
    ClusterStatus,
    read_status,
)
from suwi.env import Clock


class HealthCriteria(NamedTuple):
    lag_min: int | None
    """From which lag on a group is behind; None: groups are not read."""
    timeout_s: float
    """How long a broker may take to respond."""
    brokers: int | None = None
    """How many brokers should be alive."""
    node: int | None = None
    """Only this broker's health counts."""


async def read_health(cluster: Cluster, clock: Clock, criteria: HealthCriteria) -> ClusterStatus:
    """Raises OSError if no broker responds."""
    return await read_status(
        cluster,
        clock,
        lag_min=criteria.lag_min,
        timeout_s=criteria.timeout_s,
        with_ensemble=criteria.node is None,
    )


def problems(status: ClusterStatus, criteria: HealthCriteria) -> list[str]:
    """Why the cluster, or the wanted broker, is degraded; empty if it is healthy."""
    if criteria.node is not None:
        own = [broker for broker in status.brokers if broker.node == criteria.node]
        if not own:
            return [f"broker {criteria.node} is not registered"]
        (broker,) = own
        behind = f"broker {broker.node}: {count_text(broker.out_of_sync, 'replica')} not in sync"
        return [*_broker_problems(broker), *([behind] if broker.out_of_sync else [])]
    found = [] if status.controller is not None else ["there is no controller"]
    for broker in status.brokers:
        found += _broker_problems(broker)
    alive = sum(broker.state == ALIVE for broker in status.brokers)
    if criteria.brokers is not None and alive < criteria.brokers:
        found.append(f"{alive} of {criteria.brokers} brokers are alive")
    for partitions, what in (
        (status.offline, "without a leader"),
        (status.under_min_isr, "under min.insync.replicas"),
        (status.under_replicated, "under-replicated"),
    ):
        if partitions:
            found.append(
                f"{count_text(len(partitions), 'partition')} {what}: {names_text(partitions)}"
            )
    return found


def access_differences(status: ClusterStatus) -> Iterator[str]:
    """Settings in which brokers differ, and so in who may do what. No problem of health: they
    differ while a cluster is restarted broker by broker to change them."""
    told = [(broker.node, broker.access) for broker in status.brokers if broker.access is not None]
    for name in sorted({name for _, access in told for name in access}):
        values = {node: access.get(name, "") for node, access in told}
        if len(set(values.values())) > 1:
            each = ", ".join(f"broker {node}: {value!r}" for node, value in sorted(values.items()))
            yield f"brokers differ in {name}, and so in who may do what: {each}"


def _broker_problems(broker: BrokerStatus) -> Iterator[str]:
    if broker.state != ALIVE:
        because = "" if broker.problem is None else f": {broker.problem}"
        yield f"broker {broker.node} is {broker.state}{because}"
    if broker.is_store_connected is False:
        yield f"broker {broker.node} is not connected to {broker.store}"
    told = {problem.place for problem in broker.problems}
    for disk in broker.disks:
        if disk.is_offline and disk.directory not in told:
            yield f"broker {broker.node}: {disk.directory} is offline"
    for problem in broker.problems:
        yield problem_text(broker, problem)
    if broker.problems_count > len(broker.problems):
        yield f"broker {broker.node}: {broker.problems_count - len(broker.problems)} more problems"


def problem_text(broker: BrokerStatus, problem: BrokerProblem) -> str:
    kind = problem.kind.replace("-", " ")
    return f"broker {broker.node}: {problem.place}: {kind}: {problem.reason}"
