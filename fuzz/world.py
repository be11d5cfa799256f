"""What the fuzzer's requests may refer to: the topics of one broker, and the APIs it serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from suwi.client.connection import PeerConnection
from suwi.model.config_kinds import value_text
from suwi.model.topic_config import TOPIC_KEYS
from suwi.wire.versions import APIS, ApiKey

# Small segments and little retention, so that hours of fuzzing fit on a disk and segments roll.
_SMALL: Mapping[str, str] = {
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "retention.bytes": "16777216",
    "file.delete.delay.ms": "1000",
}
_COMPACTED_SOON: Mapping[str, str] = {
    **_SMALL,
    "segment.bytes": "65536",
    "min.cleanable.dirty.ratio": "0",
}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": _SMALL,
    "rolling": {**_SMALL, "segment.bytes": "4096", "index.interval.bytes": "0"},
    "to-gzip": {**_SMALL, "compression.type": "gzip"},
    "to-zstd": {**_SMALL, "compression.type": "zstd"},
    "to-plain": {**_SMALL, "compression.type": "uncompressed"},
    "compacted": {**_COMPACTED_SOON, "cleanup.policy": "compact"},
    "compacted-lz4": {**_COMPACTED_SOON, "cleanup.policy": "compact", "compression.type": "lz4"},
    "turning": _COMPACTED_SOON,
    "stamped": {**_SMALL, "message.timestamp.type": "LogAppendTime"},
    "synced": {**_SMALL, "flush.messages": "1"},
    "any-time": {**_SMALL, "message.timestamp.after.max.ms": str(2**63 - 1)},
}
"""Topics for hostile batches, with their configurations."""

TURNING = "turning"
"""Compacted now and then: batches that were accepted unchecked must do no harm then."""

VICTIMS = ("victim-1", "victim.2", "victim_3")
"""Topics that are created and deleted."""

CHECKED = "checked-by-an-honest-client"
"""Hostile requests may read this one, but never write or delete it."""

CHECKED_CONFIG: Mapping[str, str] = {
    # Every key is set, because hostile peers may change the broker's defaults.
    **{name: value_text(key.default) for name, (_, key) in TOPIC_KEYS.items()},
    "retention.ms": "-1",
    "segment.bytes": "262144",
}

PARTITIONS = 2


@dataclass(slots=True)
class World:
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    """As the broker assigned them. Ids are random, so cases refer to topics by name until sent."""
    served: tuple[tuple[ApiKey, int], ...] = ()
    """Every API and version that the broker advertises."""
    produce_versions: tuple[int, ...] = ()

    def serve(self, advertised: list[tuple[int, int, int]]) -> None:
        self.served = tuple(
            (ApiKey(key), version)
            for key, lowest, highest in advertised
            for version in range(max(lowest, APIS[key].min_version), highest + 1)
        )
        self.produce_versions = tuple(v for key, v in self.served if key is ApiKey.PRODUCE)


async def prepare(client: PeerConnection, world: World) -> None:
    """Ask what the broker serves, and create the topics. Raises AssertionError."""
    answer = await client.call(ApiKey.API_VERSIONS, 0, {})
    world.serve([(a.api_key, a.min_version, a.max_version) for a in answer.api_keys])
    topics = [
        {
            "name": name,
            "num_partitions": PARTITIONS,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in config.items()],
        }
        for name, config in {**TOPICS, CHECKED: CHECKED_CONFIG}.items()
    ]
    created = await client.call(ApiKey.CREATE_TOPICS, 7, {"topics": topics})
    for topic in created.topics:
        assert topic.error_code == 0, f"topic {topic.name}: {topic.error_message}"
    world.topic_ids = {topic.name: topic.topic_id for topic in created.topics}
