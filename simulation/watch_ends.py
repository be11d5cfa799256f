"""The watch of a partition ends 5 s after it was last renewed, and nothing is kept of it.

Also if the partition is deleted or moved away, its leader changes, or the broker pauses meanwhile.
Looked at every tenth of a second.
"""

from typing import Any

from suwi.model.ids import NodeId
from suwi.replica.partition_watch import WATCHES_MAX
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster, SimNode

_LOOK_S = 0.1
_ENDS_WITHIN_S = 0.3


class WatchEnds:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._loop = cluster.simulation.loop
        self._next_look_s = 0.0
        self._runs_since_s: dict[NodeId, float] = {}
        """Since when each broker can do what is due."""
        cluster.simulation.add_checker(self._after_step)

    def _after_step(self) -> None:
        now_s = self._loop.time()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        for node in self._cluster.nodes.values():
            if not _runs(node, now_s):
                self._runs_since_s[node.id] = now_s
            elif node.broker is not None:
                self._look_at(node, node.broker.replicas, now_s)

    def _look_at(self, node: SimNode, replicas: Any, now_s: float) -> None:
        watches = replicas.watches
        watched = watches._watched
        for partition in replicas:
            of_name = watched.get(partition.replica_log.partition)
            if partition.watched_by is not None and of_name is not partition:
                raise Broken(f"{node.name} notes what happens in {partition}, and never stops")
        if len(watched) > WATCHES_MAX or (watched and watches._sweep is None):
            raise Broken(f"{node.name} watches {list(watched)} without end")
        for tp, partition in watched.items():
            watch = partition.watched_by
            if watch is None:
                raise Broken(f"{node.name} keeps {tp}, which it no longer watches")
            ended_s = now_s - max(watch.ends_s, self._runs_since_s.get(node.id, 0.0))
            if ended_s > _ENDS_WITHIN_S:
                raise Broken(f"{node.name} still watches {tp}, {ended_s:.1f} s after the end")

    def at_end(self) -> None:
        """Long after the last request."""
        for node in self._cluster.nodes.values():
            watched = node.broker.replicas.watches._watched if node.broker is not None else ()
            if watched:
                raise Broken(f"{node.name} still watches {list(watched)}")


def _runs(node: SimNode, now_s: float) -> bool:
    return (
        node.is_running and not node.is_frozen and node.machine.incarnation.stalled_until <= now_s
    )
