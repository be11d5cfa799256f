"""Replaces replicas whose logs are damaged, if the partition has enough others in sync.

`step_all` runs every second for the partitions that have damage. A leader resigns first, also if
no replica can be spared: it stays in sync then, and all records can be read. A follower
stops fetching and leaves the ISR, which starts a new leader epoch: a fetch that it sent before can
then not bring it back. When the image shows that, it discards its log and fetches it anew; the old
files are set aside until it is in sync again, because a replica that it copies from may be damaged
elsewhere. The disk holds both meanwhile: replicas of one data directory are replaced one after the
other, and only if there is space. One that waits stays as it is, and its problem says for what.
Invariant: a log is discarded only while the partition has a leader and at least
min.insync.replicas other members of the ISR, this replica is not among them, and the broker is
registered.
"""

import asyncio
import logging
from contextlib import suppress
from enum import Enum, auto
from math import inf

from suwi.env.problems import because
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_EPOCH, NO_NODE, LeaderEpoch, NodeId, TopicPartition
from suwi.replica.leader_replica import LeaderReplica
from suwi.replica.leader_state import UNKNOWN_EPOCH, Proposal
from suwi.replica.log_threads import in_sync_thread
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_HAND_OVER_S_MIN = 600.0
_REMOVAL_RETRY_S = 600.0
_LEAVE_S_MAX = 10.0
_LEAVE_RETRY_S = 600.0
"""If it cannot leave the ISR, it fetches this long before it tries again."""
_SPARE_BYTES = 64 << 20
"""What must stay free for other logs while one is copied, besides a tenth of its size."""


class Step(Enum):
    KEEP = auto()
    """Too few others: the damaged range stays unreadable, and the replica stays as it is."""
    HAND_OVER = auto()
    """As KEEP, but another member can lead, so that all records are readable."""
    RESIGN = auto()
    LEAVE = auto()
    DISCARD = auto()


def next_step(
    node: NodeId, state: PartitionState, insync_min: int, stopped_in: LeaderEpoch | None
) -> Step:
    """What a damaged replica does next. `stopped_in`: it has fetched nothing in later epochs."""
    others = [member for member in state.isr if member != node]
    if len(others) < max(1, min(insync_min, state.replication_factor)):
        return Step.HAND_OVER if others and state.leader == node else Step.KEEP
    if state.leader == node:
        return Step.RESIGN
    if state.leader not in others:
        return Step.KEEP
    is_out = node not in state.isr and node not in state.elr
    if is_out and stopped_in is not None and stopped_in < state.leader_epoch:
        return Step.DISCARD
    return Step.LEAVE


def is_replaced(node: NodeId, state: PartitionState) -> bool:
    """Whether the new copy is complete: the old files are not needed any longer.

    It is, once it is in sync with another leader. A replica that leads itself was in sync before,
    unless it was elected unclean; others that are in sync with it do not show that.
    """
    if node not in state.isr or state.leader == NO_NODE or state.is_recovering:
        return False
    return state.leader != node or (len(state.isr) > 1 and state.unclean_epoch == NO_EPOCH)


class DamagedReplicas:
    def __init__(
        self, node_id: NodeId, directories: LogDirectories, replicas: ReplicaManager
    ) -> None:
        self._node_id = node_id
        self._directories = directories
        self._replicas = replicas
        self._handed_over_s: dict[TopicPartition, float] = {}
        self._leaving_s: dict[TopicPartition, float] = {}
        """When each replica that has not left the ISR yet asked for it first."""
        self._removal_failed_s: dict[TopicPartition, float] = {}

    async def step_all(self) -> None:
        damaged: set[TopicPartition] = set()
        for directory in self._directories.usable():
            await asyncio.sleep(0)
            await self._step_directory(directory)
            damaged |= directory.state.damaged.keys() | directory.state.set_aside.keys()
        for times in (self._handed_over_s, self._leaving_s, self._removal_failed_s):
            for tp in times.keys() - damaged:
                del times[tp]

    async def _step_directory(self, directory: LogDirectory) -> None:
        for tp in list(directory.state.damaged):
            try:
                _, free_bytes = await in_sync_thread(directory.space)
                self._step(tp, directory, free_bytes)
            except (BrokerError, OSError) as error:
                log.info("damaged replica not replaced yet", extra=because(error, partition=tp))
        for tp in list(directory.state.set_aside):
            await self._remove_set_aside(tp, directory)

    def _step(self, tp: TopicPartition, directory: LogDirectory, free_bytes: int) -> None:
        partition = self._replicas.replica_of(tp.topic, tp.partition)
        state = self._replicas.image.partition(tp)
        if state is None or not partition.is_open or partition.is_closed:
            return
        replica_log = partition.replica_log
        if state.leader_epoch != replica_log.leader_epoch:
            return  # The image is being applied.
        insync_min = replica_log.config.min_insync_replicas
        step = next_step(self._node_id, state, insync_min, replica_log.fetch_stopped_in)
        waits_for = None
        if step in (Step.KEEP, Step.HAND_OVER):
            if state.replication_factor > 1:
                waits_for = "enough other replicas in sync"
        else:
            waits_for = self._obstacle(partition, directory, free_bytes)
            if waits_for is not None:
                self._leaving_s.pop(tp, None)
            elif step is Step.LEAVE and self._must_fetch_again(tp):
                waits_for = "a controller that lets it leave the ISR"
            if waits_for is not None:
                step = Step.HAND_OVER if step is Step.RESIGN else Step.KEEP
        if partition.log_as_it_is.replacement_waits_for(waits_for):
            extra = {"partition": str(tp), "waits_for": waits_for or "nothing"}
            log.info("damaged replica to be replaced", extra=extra)
        self._take(step, partition, state)

    def _obstacle(
        self, partition: Partition, directory: LogDirectory, free_bytes: int
    ) -> str | None:
        """What the replacement of a replica waits for; None if it can begin or go on."""
        if not self._replicas.is_registered:
            return "the registration of this broker"
        if directory.state.is_full:
            return f"space in {directory.path}, which is full"
        other = self._being_replaced(directory, partition.partition)
        if other is not None:
            return f"the replacement of {other} in the same data directory"
        size_bytes = partition.log_as_it_is.size_bytes
        if free_bytes < size_bytes + size_bytes // 10 + _SPARE_BYTES:
            return f"free space in {directory.path} for a second copy of the log"
        return None

    def _must_fetch_again(self, tp: TopicPartition) -> bool:
        """Whether it could not leave for a while: there is no controller, or one of an older
        version. It is behind the others soon, so it fetches on."""
        now_s = asyncio.get_running_loop().time()
        waited_s = now_s - self._leaving_s.setdefault(tp, now_s)
        if waited_s >= _LEAVE_RETRY_S:
            self._leaving_s[tp] = now_s
            return False
        return waited_s >= _LEAVE_S_MAX

    def _being_replaced(
        self, directory: LogDirectory, besides: TopicPartition
    ) -> TopicPartition | None:
        """Another replica in the directory that is leaving the ISR, or is copied anew."""
        for tp in directory.state.set_aside:
            if tp != besides:
                return tp
        for tp in directory.state.damaged:
            if tp == besides:
                continue
            with suppress(BrokerError):  # The partition is being deleted.
                if self._replicas.replica_of(*tp).replica_log.fetch_stopped_in is not None:
                    return tp
        return None

    def _take(self, step: Step, partition: Partition, state: PartitionState) -> None:
        replica_log = partition.replica_log
        extra = {"partition": str(partition.partition), "epoch": state.leader_epoch}
        if step in (Step.KEEP, Step.HAND_OVER):
            replica_log.fetch_stopped_in = None
            if step is Step.HAND_OVER and partition.leader_replica is not None:
                self._hand_over(partition.partition, partition.leader_replica)
            return
        is_first = replica_log.fetch_stopped_in is None
        if is_first:
            replica_log.fetch_stopped_in = state.leader_epoch
        if step is Step.RESIGN and partition.leader_replica is not None:
            partition.leader_replica.resign("the log is damaged")
        elif step is Step.LEAVE:
            if is_first:
                log.warning("log damaged, leaving the isr", extra=extra)
            members = tuple((n, UNKNOWN_EPOCH) for n in state.isr if n != self._node_id)
            replica_log.context.propose(
                replica_log,
                Proposal(state.leader_epoch, state.partition_epoch, members, will_discard=True),
            )
        elif step is Step.DISCARD:
            log.warning("damaged log discarded, fetching it anew", extra=extra)
            partition.follower.discard_damaged()
            self._leaving_s.pop(partition.partition, None)
            replica_log.fetch_stopped_in = None

    def _hand_over(self, tp: TopicPartition, leader: LeaderReplica) -> None:
        """Not often: the other replica may be damaged too, or be elected again by preference."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._handed_over_s.get(tp, -inf) >= _HAND_OVER_S_MIN:
            self._handed_over_s[tp] = now_s
            leader.resign("the log is damaged")

    async def _remove_set_aside(self, tp: TopicPartition, directory: LogDirectory) -> None:
        state = self._replicas.image.partition(tp)
        if state is None or not is_replaced(self._node_id, state) or tp in directory.state.damaged:
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._removal_failed_s.get(tp, -inf) < _REMOVAL_RETRY_S:
            return
        try:
            await in_sync_thread(directory.removing_damaged_files(tp))
        except OSError as error:
            self._removal_failed_s[tp] = now_s
            log.warning("damaged files not removed", extra=because(error, partition=tp))
            return
        directory.state.set_aside.pop(tp, None)
        log.info("damaged files removed", extra={"partition": str(tp)})
