"""The shape of one simulated run: its cluster and its clients."""

from dataclasses import dataclass

from simulation.history import ACKS_ALL
from suwi.records.compression import Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterKind:
    acks: int = ACKS_ALL
    idempotent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The cluster and clients of one run."""

    brokers: int = 3
    partitions: int = 2
    replication_factor: int = 3
    min_insync_replicas: int = 2
    flushes_each: bool = False
    """log.flush.interval.messages=1"""
    unclean_elections: bool = False
    writers: tuple[WriterKind, ...] = (WriterKind(), WriterKind(acks=1, idempotent=False))
    readers: int = 1
    churns: bool = False
    """A topic is created and deleted while requests of every kind use it."""
    looks_up_deleted: bool = False
    """Also look-ups by time."""
    pipelines: bool = False
    """There is a writer with several requests in flight on one connection."""
    looks_up: bool = False
    """There is a client that looks up offsets by time."""
    floods: bool = False
    """There are floods of expensive requests on one connection."""
    codec: Compression = Compression.NONE
    """The codec of the writers."""
    deletes: bool = False
    """Old records are deleted now and then (DeleteRecords)."""
    pause_s_max: float = 0.3
    """How long a writer waits between records, at most."""
    members: int = 0
    """Of a consumer group; none without (`simulation/group_workload.py`)."""
    reassigns: bool = False
    """Replicas are moved to other brokers again and again."""
    cooperative: bool = False
    """The group rebalances incrementally."""
    consumer: bool = False
    """The group's members use the consumer protocol (KIP-848)."""
    copiers: int = 0
    """That copy records in transactions, at most one for each partition
    (`simulation/transaction_workload.py`)."""
    transaction_version: int = 2
    scrubs: bool = False
    """Closed segments are read again and again; logs may be damaged."""

    @property
    def coordinates(self) -> bool:
        """Whether clients use coordinators and their internal topics."""
        return bool(self.members or self.copiers)

    def topic_configs(self) -> dict[str, str]:
        configs = {
            "min.insync.replicas": str(self.min_insync_replicas),
            "segment.bytes": "1024" if self.scrubs else "4096",
        }
        if self.flushes_each:
            configs["flush.messages"] = "1"
        if self.unclean_elections:
            configs["unclean.leader.election.enable"] = "true"
        return configs
