"""The metadata image: brokers, topics, partitions and configuration as of one change. Immutable.

`ImageBuilder` makes the first image from all entries and the next ones from changes; a reader keeps
using the image it started with.
Entries in the store: `cluster` (the cluster id), `features` (the finalized features; none in a
cluster that was made without them), `topics/NAME` (id, partition count, configuration),
`partitions/NAME/SHARD` (the states of at most 1,000 partitions each),
`configs/brokers/ID` (dynamic broker configuration; ID is `default` for all brokers),
`configs/groups/NAME` (configuration of a consumer group), `scram/USER` (SCRAM credentials),
`acls/SHARD` (access rules, a line each, in `ACL_SHARDS` entries by a hash of the rule),
`client-quotas/ENTITY` (its quotas, as JSON),
`live/ID` (registered brokers, as the controller has written them), `deletions/ID` and
`deletions/ID/SHARD` (the ids of topics that were deleted while a broker was down, at most 1,000
each, so that no entry becomes too large for a write) and `events/NUMBER`.
The secrets of the cluster (`scram-decoys`, `peer-secret`) are in no image.
Invariant: a topic exists if and only if its `topics/` entry does; that entry is written last and
deleted first.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from suwi.env.slices import Pace, Slices, run_to_end
from suwi.metadata.store import Delete, Put
from suwi.model.features import BEFORE_FEATURES, UNSET_FEATURES, Features
from suwi.model.ids import NO_EPOCH, LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition
from suwi.security.acls import AclBinding, decode_rule
from suwi.security.authorizer import NO_RULES, AclIndex
from suwi.security.client_quotas import (
    NO_QUOTAS,
    ClientQuotaIndex,
    Entity,
    Quotas,
    decode_entity,
    encode_entity,
)
from suwi.security.scram import ScramCredential

SHARD_PARTITIONS = 1000
TOPICS = "topics/"
PARTITIONS = "partitions/"
CLUSTER = "cluster"
FEATURES = "features"
_CONFIGS = "configs/"
BROKER_CONFIGS = "configs/brokers/"
GROUP_CONFIGS = "configs/groups/"
LIVE = "live/"
EVENTS = "events/"
ACLS = "acls/"
ACL_SHARDS = 256
CLIENT_QUOTAS = "client-quotas/"
SCRAM = "scram/"
SCRAM_DECOYS = "scram-decoys"
"""A secret of the cluster: generates the fake credentials of SCRAM users that do not exist."""
PEER_SECRET = "peer-secret"
"""A secret of the cluster: brokers prove with it that they belong to the cluster."""
ALL_BROKERS = "default"
"""Used instead of a broker id: the dynamic configuration of all brokers."""
DELETIONS = "deletions/"
SHARD_TOPICS = 1000
_SHARD_STEPS = 50
"""Of a microsecond, to decode a shard and its topic."""
_STATE_STEPS = 8
_ENTRY_STEPS = 2

Shards = Mapping[int, frozenset[UUID]]
"""The topic ids of one broker, by the number of the entry. A number may be missing."""


class PartitionState(NamedTuple):
    leader: NodeId
    """NO_NODE if no leader can be elected."""
    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    is_recovering: bool = False
    """The leader was not in sync when it was elected (KIP-704)."""
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas: they left the ISR when it fell below min.insync.replicas. They have
    all committed records, because nothing has been committed since (KIP-966)."""
    unclean_shutdown_replicas: tuple[NodeId, ...] = ()
    """Members of the ISR or the ELR that had an unclean shutdown in which they may have lost their
    last records. If the partition has a leader, none of them is in the ISR."""
    unclean_epoch: LeaderEpoch = NO_EPOCH
    """The last epoch whose leader was elected uncleanly. Records of older epochs that this leader
    did not have may have been committed, and are lost."""
    adding_replicas: tuple[NodeId, ...] = ()
    """While a reassignment runs (KIP-455): the replicas that it adds to the original ones."""
    removing_replicas: tuple[NodeId, ...] = ()
    """While a reassignment runs: the replicas that are not in its target."""

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def original_replicas(self) -> tuple[NodeId, ...]:
        """The replicas before the reassignment that runs, to which its cancellation returns."""
        if not self.adding_replicas:
            return self.replicas
        return tuple(node for node in self.replicas if node not in self.adding_replicas)

    @property
    def target_replicas(self) -> tuple[NodeId, ...]:
        """The replicas after the reassignment that runs."""
        if not self.removing_replicas:
            return self.replicas
        return tuple(node for node in self.replicas if node not in self.removing_replicas)

    @property
    def replication_factor(self) -> int:
        """The number of replicas without those that a reassignment adds: min.insync.replicas is
        limited to it, so that a reassignment does not stop writes while it copies."""
        return len(self.replicas) - len(self.adding_replicas)


class Topic(NamedTuple):
    name: str
    id: TopicId
    configs: Mapping[str, str]
    partitions: tuple[PartitionState, ...]


class NewTopic(NamedTuple):
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = MappingProxyType({})
    assignments: Mapping[int, Sequence[int]] = MappingProxyType({})
    """The replicas of each partition, if the client assigned them; else empty."""


class Endpoint(NamedTuple):
    listener: str
    host: str
    port: int


class BrokerInfo(NamedTuple):
    id: NodeId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    """The broker epoch; each registration of a broker has a greater one."""
    fenced: bool = False
    """Shutting down, or considered failed before its session has ended: must not lead or be in
    sync."""
    features: Mapping[str, int] = BEFORE_FEATURES
    """The highest level of each feature that the broker supports."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.listener == listener), None)


def _empty_mapping() -> Any:
    return field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    sequence: int = 0
    cluster_id: str = ""
    topics: Mapping[str, Topic] = _empty_mapping()
    topics_by_id: Mapping[UUID, Topic] = _empty_mapping()
    broker_configs: Mapping[str, Mapping[str, str]] = _empty_mapping()
    scram: Mapping[str, Mapping[str, ScramCredential]] = _empty_mapping()
    """By mechanism, then by user."""
    registered_brokers: Mapping[NodeId, BrokerInfo] = _empty_mapping()
    """All registered brokers, fenced or not."""
    unfenced_brokers: Mapping[NodeId, BrokerInfo] = _empty_mapping()
    """The registered brokers that are not fenced."""
    deletions: Mapping[NodeId, Shards] = _empty_mapping()
    """Topics that were deleted while a broker was down: it deletes their data when it returns."""
    events: Mapping[int, bytes] = _empty_mapping()
    """By number; see `metadata/cluster_events.py`."""
    group_configs: Mapping[str, Mapping[str, str]] = _empty_mapping()
    """By group, where any are set."""
    features: Features = UNSET_FEATURES
    acls: AclIndex = field(default=NO_RULES, compare=False)
    acl_shards: Mapping[str, Mapping[bytes, AclBinding]] = _empty_mapping()
    """The same rules as they are stored: by the key of their entry, then by their line."""
    client_quotas: ClientQuotaIndex = field(default_factory=lambda: NO_QUOTAS, compare=False)
    acls_sequence: int = field(default=0, compare=False)
    """The sequence at which the rules were last read: images with the same one have the same."""
    controller: NodeId | None = None
    controller_epoch: int = -1
    """Of the controller, or of the last one while there is none."""

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def dynamic_config(self, node_id: NodeId) -> dict[str, str]:
        """A broker's dynamic configuration: its own settings over those of all brokers."""
        return {
            **self.broker_configs.get(ALL_BROKERS, {}),
            **self.broker_configs.get(str(node_id), {}),
        }


class ImageBuilder:
    """Keeps the store's entries and builds images from them, parsing only what changed."""

    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}
        self._shards: dict[str, list[PartitionState]] = {}
        """Parsed shards by key: only the changed shards of a large topic are parsed again."""
        self._topics: dict[str, Topic] = {}
        self._topics_by_id: dict[UUID, Topic] = {}
        self._broker_configs: Mapping[str, Mapping[str, str]] = MappingProxyType({})
        self._scram: Mapping[str, Mapping[str, ScramCredential]] = MappingProxyType({})
        self._registered: Mapping[NodeId, BrokerInfo] = MappingProxyType({})
        self._deleted_ids: dict[str, frozenset[UUID]] = {}
        """Parsed deletions by key."""
        self._events: Mapping[int, bytes] = MappingProxyType({})
        self._group_configs: Mapping[str, Mapping[str, str]] = MappingProxyType({})
        self._acl_shards: Mapping[str, Mapping[bytes, AclBinding]] = MappingProxyType({})
        self._acls = NO_RULES
        self._acls_sequence = 0
        self._client_quotas = NO_QUOTAS

    def apply(self, sequence: int, values: Mapping[str, bytes | None]) -> ClusterImage:
        """The image after a change, or of all entries for a new builder; a value is None if its key
        was deleted."""
        return run_to_end(self.applying(sequence, values))

    def applying(self, sequence: int, values: Mapping[str, bytes | None]) -> Slices[ClusterImage]:
        """As `apply`, in slices: the first image has all partitions. Nothing else may be applied
        until the last one."""
        pace = Pace()
        changed: dict[str, list[str]] = {}
        """The keys, by what is before the first slash."""
        for key, value in values.items():
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value
            changed.setdefault(key[: key.find("/") + 1], []).append(key)
            if pace.is_over(_ENTRY_STEPS):
                yield
        self._read_others(changed, sequence)
        changed_topics: set[str] = set()
        for key in chain(changed.get(TOPICS, ()), changed.get(PARTITIONS, ())):
            self._shards.pop(key, None)
            changed_topics.add(key.split("/")[1])
            if pace.is_over(_ENTRY_STEPS):
                yield
        if pace.is_over(len(changed_topics)):
            yield
        for name in sorted(changed_topics):
            before = self._topics.get(name)
            if before is not None:
                del self._topics_by_id[before.id]
            if TOPICS + name not in self._entries:
                self._topics.pop(name, None)
            else:
                topic = self._topics[name] = yield from self._read_topic(name, pace)
                self._topics_by_id[topic.id] = topic
        return self._image(sequence)

    def _read_others(self, changed: Mapping[str, list[str]], sequence: int) -> None:
        """What does not belong to a topic."""
        for key in changed.get(DELETIONS, ()):
            self._deleted_ids.pop(key, None)
            if key in self._entries:
                self._deleted_ids[key] = frozenset(map(UUID, json.loads(self._entries[key])))
        if SCRAM in changed:
            self._scram = self._read_scram()
        if LIVE in changed:
            self._registered = self._read_brokers()
        if EVENTS in changed:
            self._events = self._read_events()
        if _CONFIGS in changed:
            self._group_configs = self._read_group_configs()
            self._broker_configs = MappingProxyType(
                {name: json.loads(value) for name, value in self._below(BROKER_CONFIGS)}
            )
        if ACLS in changed:
            self._acls = self._read_acls(sorted(changed[ACLS]))
            self._acls_sequence = sequence
        if CLIENT_QUOTAS in changed:
            quotas = map(self._read_quotas, changed[CLIENT_QUOTAS])
            self._client_quotas = self._client_quotas.replaced(quotas)

    def _image(self, sequence: int) -> ClusterImage:
        return ClusterImage(
            sequence,
            self._entries.get(CLUSTER, b"").decode(),
            MappingProxyType(self._topics.copy()),
            MappingProxyType(self._topics_by_id.copy()),  # Hashes of ids are slow to compute.
            self._broker_configs,
            self._scram,
            self._registered,
            MappingProxyType({n: b for n, b in self._registered.items() if not b.fenced}),
            self._read_deletions(),
            self._events,
            self._group_configs,
            decode_features(self._entries.get(FEATURES)),
            self._acls,
            self._acl_shards,
            self._client_quotas,
            self._acls_sequence,
        )

    def _below(self, prefix: str) -> list[tuple[str, bytes]]:
        """The entries below a prefix: the rest of the key, and the value."""
        found = self._entries.items()
        return [(key.removeprefix(prefix), value) for key, value in found if key.startswith(prefix)]

    def _read_brokers(self) -> Mapping[NodeId, BrokerInfo]:
        values = {NodeId(int(name)): value for name, value in self._below(LIVE)}
        return MappingProxyType(
            {node: decode_broker(node, values[node]) for node in sorted(values)}
        )

    def _read_deletions(self) -> Mapping[NodeId, Shards]:
        deletions: dict[NodeId, dict[int, frozenset[UUID]]] = {}
        for key, ids in self._deleted_ids.items():
            node, _, shard = key.removeprefix(DELETIONS).partition("/")
            deletions.setdefault(NodeId(int(node)), {})[int(shard or 0)] = ids
        return MappingProxyType(deletions)

    def _read_events(self) -> Mapping[int, bytes]:
        return MappingProxyType({int(number): value for number, value in self._below(EVENTS)})

    def _read_group_configs(self) -> Mapping[str, Mapping[str, str]]:
        found = sorted(self._below(GROUP_CONFIGS))
        return MappingProxyType({unquote(group): json.loads(value) for group, value in found})

    def _read_scram(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        scram: dict[str, dict[str, ScramCredential]] = {}
        for user, value in sorted(self._below(SCRAM)):
            for mechanism, credential in decode_scram(value).items():
                scram.setdefault(mechanism, {})[unquote(user)] = credential
        return MappingProxyType({name: MappingProxyType(users) for name, users in scram.items()})

    def _read_acls(self, changed: Iterable[str]) -> AclIndex:
        """The rules after a change of these shards; only new lines are parsed."""
        removed: list[AclBinding] = []
        added: list[AclBinding] = []
        shards = dict(self._acl_shards)
        for key in changed:
            before = shards.pop(key, {})
            lines = self._entries.get(key, b"").splitlines()
            after = {line: before.get(line) or decode_rule(line) for line in lines}
            removed += [rule for line, rule in before.items() if line not in after]
            added += [rule for line, rule in after.items() if line not in before]
            if after:
                shards[key] = after
        self._acl_shards = MappingProxyType(shards)
        return self._acls.replaced(removed, added)

    def _read_quotas(self, key: str) -> tuple[Entity, Quotas | None]:
        value = self._entries.get(key)
        entity = decode_entity(unquote(key.removeprefix(CLIENT_QUOTAS)))
        return entity, None if value is None else json.loads(value)

    def _read_topic(self, name: str, pace: Pace) -> Slices[Topic]:
        head = json.loads(self._entries[TOPICS + name])
        states: list[PartitionState] = []
        for shard in range(-(-head["partitions"] // SHARD_PARTITIONS)):
            key = shard_key(name, shard)
            if key not in self._shards:
                self._shards[key] = decode_shard(self._entries[key])
                if pace.is_over(_SHARD_STEPS + _STATE_STEPS * len(self._shards[key])):
                    yield
            states += self._shards[key]
        states = states[: head["partitions"]]
        assert len(states) == head["partitions"]
        return Topic(name, TopicId(UUID(head["id"])), head["configs"], tuple(states))


def shard_key(topic: str, shard: int) -> str:
    return f"{PARTITIONS}{topic}/{shard}"


def shard_count(topic: Topic) -> int:
    return -(-len(topic.partitions) // SHARD_PARTITIONS)


def encode_topic(topic: Topic) -> bytes:
    head = {
        "id": str(topic.id),
        "partitions": len(topic.partitions),
        "configs": dict(topic.configs),
    }
    return json.dumps(head, separators=(",", ":")).encode()


def encode_shards(topic: Topic, only: Iterable[int] | None = None) -> dict[str, bytes]:
    """The partition states of a topic, as entries; all shards, or `only` some."""
    if only is None:
        only = range(shard_count(topic))
    shards = {}
    for number in only:
        first = number * SHARD_PARTITIONS
        states = [
            [s.leader, s.leader_epoch, s.partition_epoch, s.replicas, s.isr, *_optional_fields(s)]
            for s in topic.partitions[first : first + SHARD_PARTITIONS]
        ]
        shards[shard_key(topic.name, number)] = json.dumps(states, separators=(",", ":")).encode()
    return shards


def _optional_fields(state: PartitionState) -> list[list[object]]:
    """The fields that are set after failures and during reassignments only; left out if they have
    their defaults."""
    after_failures: list[object] = [
        int(state.is_recovering),
        state.elr,
        state.unclean_shutdown_replicas,
        state.unclean_epoch,
    ]
    if state.is_reassigning:
        return [after_failures, [state.adding_replicas, state.removing_replicas]]
    return [] if after_failures == [0, (), (), NO_EPOCH] else [after_failures]


def decode_shard(data: bytes) -> list[PartitionState]:
    return [
        PartitionState(
            NodeId(leader),
            LeaderEpoch(epoch),
            partition_epoch,
            tuple(replicas),
            tuple(isr),
            *(_decode_optional_fields(*optional[0]) if optional else ()),
            *map(tuple, optional[1] if len(optional) > 1 else ()),
        )
        for leader, epoch, partition_epoch, replicas, isr, *optional in json.loads(data)
    ]


def _decode_optional_fields(
    is_recovering: int,
    elr: list[NodeId],
    unclean_shutdown_replicas: list[NodeId],
    unclean: int = NO_EPOCH,
) -> tuple[bool, tuple[NodeId, ...], tuple[NodeId, ...], LeaderEpoch]:
    return bool(is_recovering), tuple(elr), tuple(unclean_shutdown_replicas), LeaderEpoch(unclean)


def scram_key(user: str) -> str:
    """The key of a user's entry."""
    return SCRAM + _as_key(user)


def group_configs_key(group: str) -> str:
    """The key of a group's configuration."""
    return GROUP_CONFIGS + _as_key(group)


def _as_key(name: str) -> str:
    """Escapes a name, which may contain `/` or be `..`."""
    return quote(name, safe="").replace(".", "%2E")


def encode_scram(credentials: Mapping[str, ScramCredential]) -> bytes:
    """A user's credentials, by mechanism, as the value of its entry."""
    value = {
        mechanism: {
            "salt": base64.b64encode(credential.salt).decode(),
            "iterations": credential.iterations,
            "stored_key": base64.b64encode(credential.stored_key).decode(),
            "server_key": base64.b64encode(credential.server_key).decode(),
        }
        for mechanism, credential in credentials.items()
    }
    return json.dumps(value).encode()


def decode_scram(data: bytes) -> dict[str, ScramCredential]:
    return {
        mechanism: ScramCredential(
            base64.b64decode(stored["salt"]),
            stored["iterations"],
            base64.b64decode(stored["stored_key"]),
            base64.b64decode(stored["server_key"]),
        )
        for mechanism, stored in json.loads(data).items()
    }


def acl_key(line: bytes) -> str:
    """The entry of a rule. By a hash: many rules may be about one resource or one principal."""
    return f"{ACLS}{zlib.crc32(line) % ACL_SHARDS}"


def encode_acls(lines: Iterable[bytes]) -> bytes:
    return b"\n".join(sorted(lines))


def client_quotas_key(entity: Entity) -> str:
    """The key of an entity's quotas; the value is JSON."""
    return CLIENT_QUOTAS + _as_key(encode_entity(entity))


def encode_features(features: Features) -> bytes:
    return json.dumps({"epoch": features.epoch, "levels": dict(features.levels)}).encode()


def decode_features(data: bytes | None) -> Features:
    if data is None:
        return UNSET_FEATURES
    value = json.loads(data)
    return Features(value["levels"], value["epoch"])


def encode_broker(broker: BrokerInfo) -> bytes:
    """The value of a broker's registration and of its `live/` entry."""
    value = {
        "endpoints": [[e.listener, e.host, e.port] for e in broker.endpoints],
        "rack": broker.rack,
        "epoch": broker.epoch,
        "fenced": broker.fenced,
        "features": dict(broker.features),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_broker(node_id: NodeId, data: bytes) -> BrokerInfo:
    value = json.loads(data)
    endpoints = tuple(Endpoint(*e) for e in value["endpoints"])
    features = value.get("features", BEFORE_FEATURES)
    return BrokerInfo(node_id, endpoints, value["rack"], value["epoch"], value["fenced"], features)


def partitions_of(topic: Topic) -> Iterable[tuple[TopicPartition, PartitionState]]:
    for index, state in enumerate(topic.partitions):
        yield TopicPartition(topic.name, PartitionIndex(index)), state


def put_deletion(node: NodeId, shards: Shards, topic_id: UUID) -> Put:
    """The entry with one more topic."""
    shard = max(shards, default=0)
    if len(shards.get(shard, ())) >= SHARD_TOPICS:
        shard += 1
    ids = shards.get(shard, frozenset()) | {topic_id}
    return Put(_deletions_key(node, shard), json.dumps(sorted(map(str, ids))).encode())


def delete_deletions(node: NodeId, shards: Shards) -> list[Delete]:
    return [Delete(_deletions_key(node, shard)) for shard in sorted(shards)]


def _deletions_key(node: NodeId, shard: int) -> str:
    return f"{DELETIONS}{node}/{shard}" if shard else f"{DELETIONS}{node}"
