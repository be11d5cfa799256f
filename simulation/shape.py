"""The shape of one simulated run: its cluster and its clients."""

from dataclasses import dataclass

from simulation.history import ACKS_ALL
from suwi.records.compression import Compression

_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_THROTTLED_BYTES_PER_S = 500
"""Less than what is written: a throttled replica does not catch up."""


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
    strangers: bool = False
    """A client sends markers for the producers of others, and tries to change internal topics."""
    cooperative: bool = False
    """The group rebalances incrementally."""
    consumer: bool = False
    """The group's members use the consumer protocol (KIP-848)."""
    copiers: int = 0
    """That copy records in transactions, at most one for each partition
    (`simulation/transaction_workload.py`)."""
    transaction_version: int = 2
    dawdles: bool = False
    """Many transactions are open for longer than they may be."""
    mixed: bool = False
    """Members of the group use both protocols, every other one the consumer protocol."""
    static: bool = False
    """All members of the group are static."""
    alters_min_insync: bool = False
    """`min.insync.replicas` of the topic is changed now and then."""
    grows: bool = False
    """The topic is given more partitions."""
    rack_aware: bool = False
    """Brokers are in different racks, and readers read from the replica in theirs."""
    throttles: bool = False
    """Replicas that are not in sync are throttled until everything is healed."""
    expires_offsets: bool = False
    """A group commits offsets that expire soon."""
    expires_producers: bool = False
    """Producers write records that are so old that the producers expire at once."""
    retains: bool = False
    """The side topic keeps few bytes (`simulation/side_topic.py`)."""
    compacts: bool = False
    """The side topic is compacted."""
    unclean_side: bool = False
    """The side topic may elect unclean leaders."""
    fetches_in_slices: bool = False
    """Every fetch is handled as one of many partitions is."""
    scrubs: bool = False
    """Closed segments are checked all the time."""
    changes_rules: bool = False
    """Access rules change, and refuse one client (`simulation/access_rules.py`)."""
    limits_clients: bool = False
    """Clients have quotas until everything is healed."""
    watches: bool = False
    """Somebody watches partitions now and then."""

    @property
    def coordinates(self) -> bool:
        """Whether clients use coordinators and their internal topics."""
        return bool(self.members or self.copiers or self.expires_offsets)

    @property
    def has_side_topic(self) -> bool:
        """Copiers must find every record of the topic: then others are deleted."""
        is_deleted_elsewhere = bool(self.deletes and self.copiers)
        return self.retains or self.compacts or self.unclean_side or is_deleted_elsewhere

    def broker_settings(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        if self.rack_aware:
            settings["broker.rack"] = "rack {node}"
            settings["replica.selector.class"] = _RACK_AWARE
        if self.throttles:
            settings["leader.replication.throttled.rate"] = str(_THROTTLED_BYTES_PER_S)
            settings["follower.replication.throttled.rate"] = str(_THROTTLED_BYTES_PER_S)
        if self.expires_offsets:
            settings["offsets.retention.check.interval.ms"] = "700"
        if self.changes_rules:
            settings["authorizer.class.name"] = _AUTHORIZER
            settings["allow.everyone.if.no.acl.found"] = "true"
        if self.scrubs:
            settings["log.scrubber.io.max.bytes.per.second"] = "1000000"
            settings["log.scrubber.interval.ms"] = "1000"
        return settings

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
