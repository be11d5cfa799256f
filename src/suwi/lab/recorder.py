"""Writes down what happens in a simulated cluster, as events.

It is a checker, which the monitor tells of replicas and partitions; it looks at the broker that has
just run for what leaders propose and coordinators hold; and it taps the fetchers of followers.
Invariant: nothing that it does changes the run; the trace hash is the same without it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec
from unittest.mock import patch

from kio.schema.errors import ErrorCode

from suwi.lab import events
from suwi.metadata.cluster_events import Event as ClusterEvent
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE, NO_OFFSET, NodeId
from suwi.records.batch import batches
from suwi.records.record import Record, iter_records
from suwi.replica.leader_state import (
    Expanding,
    Isr,
    LeaderState,
    Shrinking,
    Stable,
    proposed_members,
)
from suwi.replica.partition import Partition
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.sim.checkers.facts import Batch, Checker, Replica, StateChange, World
from suwi.sim.cluster import DATA, SimCluster, SimNode
from suwi.sim.disk import SimDisk
from suwi.sim.incarnation import current
from suwi.transaction.transaction_records import TransactionLogValue

P = ParamSpec("P")

VALUE_CHARS_MAX = 40
"""Of the values in a recording."""
PRODUCERS_MAX = 8
"""Of those that a replica remembers, the last ones."""


def record_text(record: Record) -> str:
    """Its value, or `key=value`; a tombstone has no value."""
    value = (record.value or b"").decode(errors="replace")
    return value if record.key is None else f"{record.key.decode(errors='replace')}={value}"


def records_in(disk: SimDisk, directory: str) -> Iterator[tuple[int, int, str]]:
    """The records of a log on a disk: offset, epoch, and the value as text."""
    for name in disk.list_dir(directory) if disk.exists(directory) else ():
        if name.endswith(".log"):
            data = memoryview(bytes(disk.peek(f"{directory}/{name}")))
            for position, header in batches(data):
                batch = data[position : position + header.size_bytes]
                for record in iter_records(batch, header):
                    value = record_text(record)
                    if header.is_control:
                        value = "commit" if (record.key or b"")[-1:] == b"\x01" else "abort"
                    yield record.offset, header.partition_leader_epoch, value


class Recorder(Checker):
    def __init__(self, cluster: SimCluster, *, with_values: bool = False) -> None:
        """`with_values`: also the values of records, as text."""
        self.events: list[events.Event] = []
        self._cluster = cluster
        self._loop = cluster.simulation.loop
        self._with_values = with_values
        self._nodes = {node.name: node for node in cluster.nodes.values()}
        self._replicas: dict[tuple[NodeId, str], dict[str, Any]] = {}
        """What the last event of each replica said."""
        self._proposed: dict[tuple[str, str], Isr] = {}
        self._followers: dict[tuple[str, str, NodeId], object] = {}
        """What the last event of each leader said of each follower."""
        self._coordinated: dict[tuple[str, str], object] = {}
        """What the last event of each group and transaction said."""
        self._fetched: dict[tuple[int, str], object] = {}
        self._answered: dict[tuple[int, str], int] = {}
        self._sends = 0
        cluster.on_start.append(self._on_start)
        cluster.on_end.append(self._on_end)

    def recording(self, source: str) -> events.Recording:
        return events.Recording(source, len(self._nodes), self.events)

    @property
    def now_s(self) -> float:
        return round(self._loop.time(), 6)

    def note(
        self,
        kind: Callable[Concatenate[float, P], events.Event],
        *args: P.args,
        **fields: P.kwargs,
    ) -> None:
        """An event of now."""
        self.events.append(kind(self.now_s, *args, **fields))

    # -- what clients and faults do --------------------------------------------------------------

    def fault(self, what: str, broker: int | None = None) -> None:
        self.note(events.Fault, what=what, broker=broker)

    def violation(self, what: str) -> None:
        self.note(events.Violation, what=what)

    def sent(
        self, client: str, partition: str, values: Sequence[str], acks: str, broker: int | None
    ) -> int:
        """The number for `send_ended`."""
        self._sends += 1
        self.note(
            events.Send,
            client=client,
            partition=partition,
            number=self._sends,
            values=tuple(values),
            acks=acks,
            broker=broker,
        )
        return self._sends

    def send_ended(self, client: str, number: int, offset: int | None, error: str | None) -> None:
        self.note(events.SendResult, client=client, number=number, offset=offset, error=error)

    def told(self, client: str, what: str) -> None:
        self.note(events.Told, client=client, what=what)

    def _on_start(self, node: SimNode) -> None:
        self.fault(events.STARTED, node.id)

    def _on_end(self, node: SimNode, lost_power: bool) -> None:
        self.fault(events.POWER_LOST if lost_power else events.ENDED, node.id)
        self._proposed = {k: isr for k, isr in self._proposed.items() if k[0] != node.name}
        self._followers = {k: seen for k, seen in self._followers.items() if k[0] != node.name}

    # -- what the monitor tells ------------------------------------------------------------------

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        name = str(replica.log)
        known = self._replicas.setdefault((replica.node, name), {})
        state: dict[str, Any] = {
            "epoch": replica.leader_epoch,
            "offset": replica.end,
            "high_watermark": replica.watermark,
            "last_stable": replica.stable,
            "log_start": replica.start,
            "leads": replica.leads,
            "epochs": tuple(replica.epochs),
            **self._of_log(replica),
        }
        news = {key: value for key, value in state.items() if known.get(key) != value}
        if not news and not appended:
            return
        known.update(state)
        values = self._values(replica) if self._with_values and appended else {}
        self.note(
            events.ReplicaChanged,
            broker=replica.node,
            partition=name,
            appended=tuple(
                (
                    batch.base,
                    batch.last,
                    batch.epoch,
                    " ".join(values.get(o, "") for o in range(batch.base, batch.last + 1)).strip(),
                )
                for batch in appended
            ),
            **{"epoch": replica.leader_epoch, **news},
        )

    def _of_log(self, replica: Replica) -> dict[str, Any]:
        broker = self._cluster.nodes[replica.node].broker
        assert broker is not None
        log = broker.replicas.replica_of(*replica.log.name).log_as_it_is
        return {
            "segments": tuple(segment.base_offset for segment in log.segments()),
            "producers": tuple(
                (each.producer_id, each.epoch, each.last_sequence, each.txn_first_offset)
                for each in log.producers.last(PRODUCERS_MAX)
            ),
        }

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        self._truncated(replica, removed)

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        kept = set(replica.batches)
        removed = [batch for batch in before if batch not in kept]
        if removed:
            self._truncated(replica, removed)

    def on_deleted(self, world: World, replica: Replica) -> None:
        self._replicas.pop((replica.node, str(replica.log)), None)
        self._truncated(replica, replica.batches)

    def on_controller(self, world: World, epoch: int) -> None:
        node = world.controller[0] if world.controller is not None else None
        self.note(events.Election, broker=node, epoch=epoch, reason="controller")

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        for log, before, after in changes:
            if after is None:
                self.note(events.Election, partition=str(log), reason=events.DELETED)
                continue
            leader = None if after.leader == NO_NODE else int(after.leader)
            common: dict[str, Any] = {
                "broker": leader,
                "partition": str(log),
                "epoch": after.leader_epoch,
            }
            if before is None or (before.leader, before.leader_epoch) != (
                after.leader,
                after.leader_epoch,
            ):
                self.note(events.Election, reason=election_reason(before, after), **common)
            if before is None or before.isr != after.isr:
                members = tuple(map(int, after.isr))
                self.note(events.InSync, members=members, is_confirmed=True, **common)

    def on_event(self, world: World, event: ClusterEvent) -> None:
        self.note(events.loss_of, event.kind, event.facts)

    def _truncated(self, replica: Replica, removed: list[Batch]) -> None:
        end = removed[0].base if removed else replica.end
        self.note(
            events.Truncation,
            broker=replica.node,
            partition=str(replica.log),
            epoch=replica.leader_epoch,
            offset=end,
            removed=tuple((batch.base, batch.last, batch.epoch) for batch in removed),
        )

    def _values(self, replica: Replica) -> dict[int, str]:
        disk = self._cluster.nodes[replica.node].machine.disk
        found = records_in(disk, f"{DATA}/{replica.log}")
        return {offset: value[:VALUE_CHARS_MAX] for offset, _, value in found}

    # -- what is looked at -----------------------------------------------------------------------

    def _after_step(self) -> None:
        ran = self._loop.ran
        node = self._nodes.get(ran.host) if ran is not None and not ran.revoked else None
        if node is None or node.broker is None:
            return
        for partition in node.broker.replicas:
            leader = partition.leader_replica
            if leader is not None:
                self._look_at_proposal(node, partition, leader.state.isr)
                self._look_at_followers(node, partition, leader.state)
        for groups in node.broker.groups.runtime.active():
            for group_id in groups.machine.groups.ids():
                group = groups.machine.groups.with_members(group_id)
                if group is not None:
                    self._look_at_group(node, group_id, group)
        for transactions in node.broker.transactions.runtime.active():
            for transactional_id, value in transactions.machine.transactions.items():
                self._look_at_transaction(node, transactional_id, value)

    def _look_at_proposal(self, node: SimNode, partition: Partition, isr: Isr) -> None:
        key = (node.name, str(partition.partition))
        before = self._proposed.get(key)
        if before is isr:
            return
        self._proposed[key] = isr
        is_refused = isinstance(before, Expanding | Shrinking) and isr.members == before.members
        if is_refused or not isinstance(isr, Stable):
            self.note(
                events.InSync,
                broker=node.id,
                partition=key[1],
                epoch=partition.leader_epoch,
                members=tuple(sorted(map(int, proposed_members(isr)))),
                is_confirmed=False,
            )

    def _look_at_followers(self, node: SimNode, partition: Partition, state: LeaderState) -> None:
        log = partition.replica_log.log
        if log is None or partition.config.is_compacted:
            return  # As the monitor, which does not look at compacted logs.
        for follower, seen in state.followers.items():
            is_known = seen.end_offset != NO_OFFSET
            has_all = is_known and seen.end_offset >= log.end_offset
            caught_up_s = None if has_all or seen.caught_up_s < 0 else round(seen.caught_up_s, 6)
            key = (node.name, str(partition.partition), follower)
            news = (state.leader_epoch, seen.end_offset, caught_up_s)
            if self._followers.get(key) != news:
                self._followers[key] = news
                self.note(
                    events.FollowerSeen,
                    broker=node.id,
                    partition=key[1],
                    epoch=state.leader_epoch,
                    offset=seen.end_offset if is_known else None,
                    follower=follower,
                    caught_up_s=caught_up_s,
                )

    def _look_at_group(self, node: SimNode, group_id: str, group: Any) -> None:
        epoch = group.generation if hasattr(group, "generation") else group.epoch
        state = (group.state, epoch, len(group.members))
        if self._coordinated.get(("group", group_id)) != state:
            self._coordinated["group", group_id] = state
            self.note(
                events.GroupState,
                broker=node.id,
                group=group_id,
                state=group.state.value,
                epoch=epoch,
                members=len(group.members),
            )

    def _look_at_transaction(
        self, node: SimNode, transactional_id: str, value: TransactionLogValue
    ) -> None:
        state = (value.state, value.producer_id, value.producer_epoch)
        if self._coordinated.get(("transaction", transactional_id)) != state:
            self._coordinated["transaction", transactional_id] = state
            self.note(
                events.TransactionState,
                broker=node.id,
                transactional_id=transactional_id,
                state=value.state.label,
                epoch=value.producer_epoch,
                producer_id=value.producer_id,
            )

    # -- fetches of followers --------------------------------------------------------------------

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """While it is entered, the fetches of followers are recorded, and from then on what leaders
        and coordinators hold: to be entered after the monitor is there, which tells of replicas
        first."""
        self._cluster.simulation.add_checker(self._after_step)
        build, process = ReplicaFetcher._build_fetch, ReplicaFetcher._process_partition

        def build_fetch(fetcher: ReplicaFetcher) -> Any:
            sent = build(fetcher)
            for key, wanted in sent.wanted.items():
                self._fetch(sent.partitions[key].partition, wanted)
            return sent

        def process_partition(fetcher: ReplicaFetcher, state: Any, sent: Any, fetched: Any) -> bool:
            self._answer(state.partition, sent, fetched)
            return process(fetcher, state, sent, fetched)

        with (
            patch.object(ReplicaFetcher, "_build_fetch", build_fetch),
            patch.object(ReplicaFetcher, "_process_partition", process_partition),
        ):
            yield

    def _follower(self) -> int | None:
        """The broker of this cluster that is running."""
        process = current.get()
        node = self._nodes.get(process.host) if process is not None else None
        return node.id if node is not None else None

    def _fetch(self, partition: Partition, wanted: Any) -> None:
        follower, name = self._follower(), str(partition.partition)
        state = (partition.leader, wanted.current_leader_epoch, wanted.fetch_offset)
        if follower is None or self._fetched.get((follower, name)) == state:
            return
        self._fetched[follower, name] = state
        self.note(
            events.Fetch,
            broker=follower,
            partition=name,
            epoch=wanted.current_leader_epoch,
            offset=wanted.fetch_offset,
            leader=partition.leader,
        )

    def _answer(self, partition: Partition, sent: Any, fetched: Any) -> None:
        follower, name = self._follower(), str(partition.partition)
        if follower is None:
            return
        size_bytes = len(fetched.records or b"")
        is_new = self._answered.get((follower, name)) != fetched.high_watermark
        if not (is_new or size_bytes or fetched.error_code or fetched.diverging_epoch):
            return
        self._answered[follower, name] = fetched.high_watermark
        self.note(
            events.FetchAnswer,
            broker=follower,
            partition=name,
            epoch=sent.current_leader_epoch,
            offset=sent.fetch_offset,
            leader=partition.leader,
            high_watermark=fetched.high_watermark,
            size_bytes=size_bytes,
            error=ErrorCode(fetched.error_code).name if fetched.error_code else None,
            diverging=tuple(fetched.diverging_epoch) if fetched.diverging_epoch else None,
        )


def election_reason(before: PartitionState | None, after: PartitionState) -> str:
    """Why the leader or its epoch changed, from the two states."""
    if before is None:
        return "the partition is created"
    if after.leader == NO_NODE:
        return "no replica may lead"
    if after.leader_epoch == after.unclean_epoch:
        return "unclean: no in-sync replica is left"
    if before.leader == NO_NODE:
        return "a replica that may lead is back"
    if before.leader == after.leader:
        return "the replicas change"
    if before.leader in after.isr:
        return "the preferred leader" if after.leader == after.replicas[0] else "the leader stops"
    return "the leader is gone"
