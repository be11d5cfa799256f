"""Well-formed requests of every served API and version, with likely and unlikely values.

The schema gives the fields; `_HINTS` has likely values for fields with known names. A well-formed
request must be answered, whatever it asks for.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from fuzz.batches import any_batch
from fuzz.world import CHECKED, PARTITIONS, TOPICS, VICTIMS, World
from suwi.model.broker_config import DYNAMIC_BROKER_KEYS
from suwi.model.topic_config import TOPIC_KEYS
from suwi.wire.codec import encode_request
from suwi.wire.headers import request_header
from suwi.wire.schema import Direction, Field, Structure, structure
from suwi.wire.versions import ApiKey

_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
# APIs that change records, and APIs that change topics. All others only read.
_RECORD_WRITERS: Final = frozenset(
    {ApiKey.PRODUCE, ApiKey.DELETE_RECORDS, ApiKey.WRITE_TXN_MARKERS}
)
_TOPIC_WRITERS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
    }
)
_ODD_NAMES: Final = ("", ".", "..", "../x", "a" * 249, "a" * 250, "a b", "€", "__consumer_offsets")
# Without the connection limits: a broker that accepts no connection is correct, but useless here.
_CONFIG_KEYS: Final = (
    *TOPIC_KEYS,
    *(key for key in sorted(DYNAMIC_BROKER_KEYS) if not key.startswith("max.connections")),
    "no.such.key",
)
_STRINGS: Final = ("", "a", "client", "€" * 40, "x" * 300, "\0", "y" * 32_767)

Chance = random.Random
_Hint = Callable[["_Sampler"], Any]


def frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A request with its header and its size before it."""
    data = request_header(api_key, version, correlation_id, "fuzz") + body
    return len(data).to_bytes(4, "big") + data


def request_body(chance: Chance, world: World, api_key: ApiKey, version: int) -> bytes:
    sampler = _Sampler(chance, world, api_key)
    values = sampler.structure(structure(api_key, version, Direction.REQUEST))
    if api_key == ApiKey.PRODUCE:
        values["acks"] = chance.choice((-1, -1, 1, 1, 2, -32768))
    return encode_request(api_key, version, values)


def produce_body(
    world: World, version: int, topic: str, records: bytes, acks: int, partition: int = 0
) -> bytes:
    """A produce request with one batch."""
    data = {"index": partition, "records": records}
    topic_id = world.topic_ids.get(topic, UUID(int=1))
    topics = [{"name": topic, "topic_id": topic_id, "partition_data": [data]}]
    fields = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": topics}
    return encode_request(ApiKey.PRODUCE, version, fields)


class _Sampler:
    """Makes values for one request."""

    def __init__(self, chance: Chance, world: World, api_key: ApiKey) -> None:
        self.chance = chance
        self.world = world
        self.api_key = api_key
        self.topic = self._topic()

    def _topic(self) -> str:
        chance = self.chance
        if self.api_key in _TOPIC_WRITERS:
            return chance.choice(VICTIMS)
        if self.api_key not in _RECORD_WRITERS and chance.random() < 0.1:
            return CHECKED
        return chance.choice((*TOPICS, VICTIMS[0]))

    def name(self) -> str:
        return self.chance.choice(_ODD_NAMES) if self.chance.random() < 0.1 else self.topic

    def topic_id(self) -> UUID | None:
        roll = self.chance.random()
        if roll < 0.05:
            return UUID(int=self.chance.getrandbits(128))
        if roll < 0.1 and self.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH):
            return None
        return self.world.topic_ids.get(self.topic, UUID(int=1))

    def structure(self, described: Structure) -> dict[str, Any]:
        if any(field.name in ("topic_id", "partitions") for field in described.fields):
            self.topic = self._topic()
        values = {field.name: self._field(field) for field in described.all_fields()}
        if {"name", "value"} <= values.keys():  # a setting
            values["name"] = self.chance.choice(_CONFIG_KEYS)
        return values

    def _field(self, field: Field) -> Any:
        chance = self.chance
        if field.nullable and (field.tag is None or field.default is None):
            if chance.random() < 0.1:
                return None
        elif field.tag is not None and chance.random() < 0.8:
            return field.default if field.structure is None else self.structure(field.structure)
        if field.is_array:
            if field.name == "assignments" and chance.random() < 0.8:
                return []
            return [self._scalar(field) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
        return self._scalar(field)

    def _scalar(self, field: Field) -> Any:
        chance = self.chance
        if field.structure is not None:
            return self.structure(field.structure)
        hint = _HINTS.get(field.name)
        # The `value` of a quota is a number, that of a setting a text.
        if hint is not None and field.kafka_type != "float64" and chance.random() < 0.9:
            return hint(self)
        match field.kafka_type:
            case "bool":
                return chance.random() < 0.5
            case "uuid":
                return self.topic_id()
            case "string":
                # Null is not always allowed, but long and unusual names are.
                return chance.choice(_STRINGS)
            case "records":
                return any_batch(chance)
            case "bytes":
                return chance.randbytes(chance.choice((0, 1, 100)))
            case "float64":
                return chance.uniform(-1e9, 1e9)
            case "timedelta_i64" | "datetime_i64":
                return chance.choice((0, 1, 1_700_000_000_000))
            case "timedelta_i32":
                return chance.choice((0, 1, 20))
            case kafka_type:
                edge = 1 << (_BITS.get(kafka_type, 16) - 1)
                return chance.choice((0, -1, 1, 2, edge - 1, -edge, chance.randrange(-edge, edge)))


def _one_of(*choices: Any) -> _Hint:
    return lambda sampler: sampler.chance.choice(choices)


_HINTS: Mapping[str, _Hint] = {
    "name": _Sampler.name,
    "topic": _Sampler.name,
    "topic_names": _Sampler.name,
    "topic_id": _Sampler.topic_id,
    "partition": _one_of(*range(PARTITIONS), PARTITIONS),
    "partitions": _one_of(*range(PARTITIONS), PARTITIONS),
    "partition_index": _one_of(*range(PARTITIONS), PARTITIONS),
    "index": _one_of(*range(PARTITIONS), PARTITIONS),
    "num_partitions": _one_of(-1, 0, 1, 2, PARTITIONS),
    "replication_factor": _one_of(-1, 0, 1, 1, 2),
    "broker_ids": _one_of(0, 0, 1),
    "count": _one_of(0, 1, 2, 3, 4),
    "resource_type": _one_of(2, 2, 4, 8),
    "resource_name": lambda sampler: sampler.chance.choice((sampler.topic, "0", "", "²")),
    "configuration_keys": _one_of("retention.ms", "x"),
    "config_operation": _one_of(0, 1, 2, 3, 9),
    "partition_indexes": _one_of(*range(PARTITIONS), PARTITIONS),
    "offset": _one_of(-1, 0, 1, 10, 2**62),
    "leader_epoch": _one_of(-1, 0, 1),
    "response_partition_limit": _one_of(-1, 0, 1, 3, 2000),
    "topic_name": _Sampler.name,
    "value": _one_of("compact", "gzip", "1024", "1", "-1", "true", "x", "9" * 5000),
    "timestamp": _one_of(-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_000, 2**63 - 1),
    "fetch_offset": _one_of(0, 0, 1, 5, 1000, 2**63 - 1, -1),
    "current_leader_epoch": _one_of(-1, 0, 1),
    "last_fetched_epoch": _one_of(-1, 0, 1, 7),
    "max_wait": _one_of(0, 1, 20, -1),
    "min_bytes": _one_of(0, 1, 100, 1 << 20, -1),
    "max_bytes": _one_of(0, 1, 1000, 1 << 20, -1),
    "partition_max_bytes": _one_of(0, 1, 1000, 1 << 20, -1),
    "isolation_level": _one_of(0, 1, 2),
    "session_id": _one_of(0, 0, 1),
    "session_epoch": _one_of(-1, 0, 0, 1),
    "replica_id": _one_of(-1, -1, -1, 0, 1),
    "records": lambda sampler: any_batch(sampler.chance),
    "client_software_name": _one_of("librdkafka", "apache-kafka-java", "a b", ""),
    "client_software_version": _one_of("2.8.0", "-", ""),
    "validate_only": _one_of(False, False, True),
}
