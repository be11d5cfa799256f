"""Takes a broker out of a running local cluster: `suwi cluster remove`.

Invariant: only a broker without replicas is removed; the controller has the last word on that.
"""

from collections.abc import Sequence

from suwi.local_cluster.cluster import STOP_S, ClusterError, LocalCluster
from suwi.local_cluster.layout import LINKS, broker_name
from suwi.local_cluster.ports import is_free
from suwi.local_cluster.process import ProcessState
from suwi.local_cluster.view import View, unregister
from suwi.model.errors import InvalidRequest


def remove(cluster: LocalCluster, broker: int) -> None:
    """Stop a broker that has no replicas, and take it out of the cluster. Its files stay."""
    name = broker_name(broker)
    cluster.check_name(name)
    if len(cluster.layout.broker_ids) == 1:
        raise ClusterError(f"{name} is the only broker")
    views = _views_of_others(cluster, broker)
    if not views:
        raise ClusterError("no other broker answers: it is not known what is on this one")
    partitions = sorted({tp for view in views.values() for tp in view.replicas_on(broker)})
    if partitions:
        raise ClusterError(_drain_first(broker, partitions))
    cluster.stop_processes([name])

    def is_unregistered() -> bool:
        seen = _views_of_others(cluster, broker).values()
        return bool(seen) and all(broker not in view.brokers for view in seen)

    cluster.wait(is_unregistered, STOP_S, f"{name} is still registered")
    layout = cluster.layout
    try:
        unregister([layout.client_address(other) for other in views], broker)
    except InvalidRequest as error:  # it has got replicas meanwhile
        cluster.start_processes([name])
        raise ClusterError(error.message) from None
    with cluster.changed() as state:
        state.forget(broker)
    if cluster.process_state(LINKS) is ProcessState.RUNNING:
        # They have the ports until they have read `cluster.json`; a broker may be added at once.
        ports = layout.link_ports(broker)
        cluster.wait(lambda: all(map(is_free, ports)), STOP_S, f"the links still use {ports}")


def _views_of_others(cluster: LocalCluster, broker: int) -> dict[int, View]:
    views = cluster.views()
    return {b: view for b, view in views.items() if b != broker and view is not None}


def _drain_first(broker: int, partitions: Sequence[str]) -> str:
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    return (
        f"{broker_name(broker)} has replicas of {partitions[0]}{more}: `suwi cluster drain "
        f"{broker}` moves them away"
    )
