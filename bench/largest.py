"""The largest legal request of every API, and small requests with the largest replies.

`largest` makes the requests from the schemas: for each array of an API's newest version one request
in which this array has as many items as are accepted. Names are those of existing topics first,
then unknown ones. What would change the cluster for good is only validated, or names nothing that
exists. The newest versions of Produce and Fetch name topics by ids that do not exist: `of_records`
lists requests with names. `smallest` lists the requests that are answered with the most.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.admin import Topics
from bench.messages import CLIENT_ID, frame
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
)
from suwi.wire.headers import request_header
from suwi.wire.produce import encode_produce_request
from suwi.wire.schema import FIXED, Direction, Field, Structure, structure
from suwi.wire.versions import (
    APIS,
    CLIENT_JSON_BYTES_MAX,
    REQUEST_ITEMS_MAX,
    SMALL_REQUEST_BYTES_MAX,
    ApiKey,
)

_ITEMS: Final = REQUEST_ITEMS_MAX - 10
_PRODUCED_PARTITIONS: Final = 10_000
_PRODUCERS: Final = 10_000
_NAMES_VERSION: Final = 12  # of Produce and Fetch, the last with names
_LARGE_BATCH_BYTES: Final = 1_000_000
_LARGE_BATCHES: Final = 100  # together nearly socket.request.max.bytes
_METADATA_BYTES: Final = 7 * 1024 * 1024
COMMIT_VERSION: Final = 8  # the last with names
OFFSETS_GROUP: Final = "all-offsets"
# These would be deleted, or replaced.
_UNKNOWN_NAMES_ONLY: Final = {
    ApiKey.DELETE_TOPICS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_DELETE,
    ApiKey.WRITE_TXN_MARKERS,
}  # fmt: skip
# They end a connection that need not authenticate.
_LEFT_OUT: Final = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
_VALUES: Final[dict[str, Any]] = {
    "validate_only": True,
    "timeout": 30_000,
    "rebalance_timeout": 1_000,
    "session_timeout": 6_000,
    "acks": 1,
    "replica_id": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "group_instance_id": None,
    "isolation_level": 0,
    "election_type": 0,
    "session_id": 0,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "resource_type": 2,
    "key_type": 0,
    "max_wait": 0,
    "count": 1_000,
    "num_partitions": 1,
    "replication_factor": 1,
    "config_operation": 0,
    "broker_ids": [0],
    "cursor": None,
    "response_partition_limit": 2_000,
}


class Asked(NamedTuple):
    name: str
    frame: bytes


def largest(topics: Topics, served: Collection[int]) -> Iterator[Asked]:
    """Of every API that is served and has arrays, and of our own APIs that clients may use."""
    names = b",".join(b'"%d"' % number for number in range(CLIENT_JSON_BYTES_MAX // 8))
    for own in (ApiKey.DESCRIBE_REPLICAS, ApiKey.DESCRIBE_EVENTS):
        yield _asked(own, "64 KiB", b'{"topics": [' + names + b"]}")
    for api in APIS.values():
        if api.key not in served or api.key in _LEFT_OUT:
            continue
        for path in arrays_of(api.key):
            items = _PRODUCED_PARTITIONS if api.key is ApiKey.PRODUCE else _ITEMS
            fields, items = largest_fields(api.key, path, list(topics), items)
            body = encode_request(api.key, api.max_version, fields)
            yield _asked(api.key, f"{items:,} {'.'.join(path)}", body)


def of_records(topics: Topics) -> Iterator[Asked]:
    """Produce, Fetch and DescribeProducers of partitions that exist, in order: what is written is
    read afterwards."""
    places = [(name, index) for name, count in topics.items() for index in range(count)]
    places = places[:_PRODUCED_PARTITIONS]
    some = f"{len(places):,} partitions that exist"
    yield _produce(some, [(*place, _batch(b"x")) for place in places])
    large = _batch(b"x" * _LARGE_BATCH_BYTES)
    yield _produce(f"{_LARGE_BATCHES} MB", [(*place, large) for place in places[:_LARGE_BATCHES]])
    first = places[0]
    batches = [(*first, _batch(b"x", producer_id=number)) for number in range(_PRODUCERS)]
    yield _produce(f"{_PRODUCERS:,} producers, one partition", batches)
    yield _fetch(some, places, epoch=-1)
    yield _fetch(f"{some}, with a session", places, epoch=0)
    yield _fetch(f"small, {_LARGE_BATCHES} MB", places[:_LARGE_BATCHES], epoch=-1)
    asked = {"topics": [{"name": first[0], "partition_indexes": [first[1]]}]}
    body = _encode(ApiKey.DESCRIBE_PRODUCERS, asked)
    yield _asked(ApiKey.DESCRIBE_PRODUCERS, f"small, {_PRODUCERS:,} producers", body)


def of_bytes() -> Iterator[Asked]:
    """Few items, but large ones."""
    metadata = bytes(_METADATA_BYTES)
    fields, _ = largest_fields(ApiKey.JOIN_GROUP, (), (), 0)
    fields["protocols"] = [{"name": "range", "metadata": metadata}]
    yield _asked(ApiKey.JOIN_GROUP, "7 MiB of metadata", _encode(ApiKey.JOIN_GROUP, fields))
    fields, _ = largest_fields(ApiKey.SYNC_GROUP, (), (), 0)
    fields["assignments"] = [{"member_id": "", "assignment": metadata}]
    yield _asked(ApiKey.SYNC_GROUP, "7 MiB of assignments", _encode(ApiKey.SYNC_GROUP, fields))


def _batch(value: bytes, *, producer_id: int = -1) -> bytes:
    numbers = {} if producer_id < 0 else {"producer_epoch": 0, "base_sequence": 0}
    return bytes(build_batch([Record(value=value)], producer_id=producer_id, **numbers))


def _produce(what: str, batches: Sequence[tuple[str, int, bytes]]) -> Asked:
    topics: dict[str, list[tuple[int, bytes]]] = {}
    for name, index, batch in batches:
        topics.setdefault(name, []).append((index, batch))
    asked = [(name, None, partitions) for name, partitions in topics.items()]
    body = b"".join(encode_produce_request(_NAMES_VERSION, None, 1, 30_000, asked))
    return _asked(ApiKey.PRODUCE, what, body, _NAMES_VERSION)


def _fetch(what: str, places: Sequence[tuple[str, int]], *, epoch: int) -> Asked:
    topics: dict[str, list[FetchPartition]] = {}
    for name, index in places:
        partition = FetchPartition(index, -1, 0, -1, -1, 2 * _LARGE_BATCH_BYTES)
        topics.setdefault(name, []).append(partition)
    asked = [FetchTopic(name, None, partitions) for name, partitions in topics.items()]
    bytes_max = _LARGE_BATCHES * _LARGE_BATCH_BYTES
    fetch = FetchRequest(0, 1, bytes_max, asked, session_epoch=epoch)
    body = encode_fetch_request(_NAMES_VERSION, fetch)
    return _asked(ApiKey.FETCH, what, body, _NAMES_VERSION)


def arrays_of(api: int) -> list[tuple[str, ...]]:
    """The paths of all arrays in a request of the newest version."""
    return list(_arrays(structure(api, APIS[api].max_version, Direction.REQUEST)))


def largest_fields(
    api: ApiKey, path: tuple[str, ...], names: Sequence[str], items_max: int
) -> tuple[dict[str, Any], int]:
    """The fields of a request whose array at `path` is long, and its number of items."""
    described = structure(api, APIS[api].max_version, Direction.REQUEST)
    maker = _Maker(path, [] if api in _UNKNOWN_NAMES_ONLY else names, items_max)
    return maker.fields(described, (), 0), maker.items


def commit(group: str, topics: Topics) -> bytes:
    """A framed OffsetCommit of all partitions."""
    fields, _ = largest_fields(ApiKey.OFFSET_COMMIT, (), (), 0)
    version = COMMIT_VERSION
    offset = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    fields |= {
        "group_id": group,
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, **offset} for index in range(count)],
            }
            for name, count in topics.items()
        ],
    }
    header = request_header(ApiKey.OFFSET_COMMIT, version, 0, CLIENT_ID)
    return frame(header + encode_request(ApiKey.OFFSET_COMMIT, version, fields))


def find_coordinator(group: str) -> bytes:
    fields = {"key_type": 0, "coordinator_keys": [group]}
    return _asked(ApiKey.FIND_COORDINATOR, "", _encode(ApiKey.FIND_COORDINATOR, fields)).frame


def _encode(api: ApiKey, fields: dict[str, Any]) -> bytes:
    return encode_request(api, APIS[api].max_version, fields)


def _asked(api: ApiKey, what: str, body: bytes, version: int | None = None) -> Asked:
    header = request_header(api, version or APIS[api].max_version, 0, CLIENT_ID)
    return Asked(f"{APIS[api].name}: {what}", frame(header + body))


def _arrays(described: Structure, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in described.fields:
        here = (*path, field.name)
        if field.is_array:
            yield here
        if field.structure is not None:
            yield from _arrays(field.structure, here)


class _Maker:
    """Makes the fields of a request in which the array at `path` is long; others have one item."""

    def __init__(self, path: tuple[str, ...], names: Sequence[str], items_max: int) -> None:
        self._path = path
        self._names = names
        self._items_max = items_max
        self.items = 0

    def fields(self, described: Structure, path: tuple[str, ...], number: int) -> dict[str, Any]:
        made = {}
        for field in described.fields:
            here = (*path, field.name)
            if here == self._path:
                self.items = self._items(field)
                made[field.name] = [self._value(field, here, n) for n in range(self.items)]
            elif field.name in _VALUES:
                made[field.name] = _VALUES[field.name]
            elif field.is_array:
                made[field.name] = [self._value(field, here, number)]
            else:
                made[field.name] = self._value(field, here, number)
        return made

    def _items(self, field: Field) -> int:
        """All arrays of a request together are limited."""
        inner = 0 if field.structure is None else len(list(_arrays(field.structure)))
        item_bytes = 80 if field.structure is not None else 16
        return min(self._items_max // (1 + inner), SMALL_REQUEST_BYTES_MAX // item_bytes)

    def _value(self, field: Field, path: tuple[str, ...], number: int) -> Any:
        if field.structure is not None:
            return self.fields(field.structure, path, number)
        match field.kafka_type:
            case "string":
                return self._names[number] if number < len(self._names) else f"unknown-{number}"
            case "records":
                return bytes(build_batch([Record(value=b"x")]))
            case "bytes":
                return b"x"
            case "uuid":
                return None
            case "bool":
                return False
            case kafka_type:
                bits = 8 * struct.calcsize(">" + FIXED[kafka_type])
                return number % (1 << (bits - 1))


def smallest() -> Iterator[Asked]:
    """A few bytes each, answered with everything there is."""
    everything: list[tuple[ApiKey, str, dict[str, Any]]] = [
        (ApiKey.METADATA, "all topics", {"topics": None}),
        (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "all topics", {"topics": [], "cursor": None}),
        (ApiKey.DESCRIBE_LOG_DIRS, "all replicas", {"topics": None}),
        (ApiKey.DESCRIBE_CLUSTER, "", {}),
        (ApiKey.LIST_CONFIG_RESOURCES, "all", {"resource_types": []}),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, "all", {"topics": None}),
        (ApiKey.ELECT_LEADERS, "of all partitions", {"topic_partitions": None}),
        (ApiKey.LIST_GROUPS, "all", {"states_filter": [], "types_filter": []}),
        (ApiKey.LIST_TRANSACTIONS, "all", {
            "state_filters": [], "producer_id_filters": [], "transactional_id_pattern": None,
            "duration_filter": -1,
        }),
        (ApiKey.OFFSET_FETCH, "all of a group", {
            "groups": [{"group_id": OFFSETS_GROUP, "member_id": None, "topics": None}],
            "require_stable": False,
        }),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "all users", {"users": None}),
        (ApiKey.DESCRIBE_CONFIGS, "of the broker", {
            "resources": [
                {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
            ],
            "include_synonyms": True,
            "include_documentation": True,
        }),
    ]  # fmt: skip
    for api, what, given in everything:
        described = structure(api, APIS[api].max_version, Direction.REQUEST)
        maker = _Maker((), (), 0)
        fields = {**maker.fields(described, (), 0), **given}
        body = encode_request(api, APIS[api].max_version, fields)
        yield _asked(api, f"small, {what}", body)
    for api in (ApiKey.DESCRIBE_REPLICAS, ApiKey.DESCRIBE_EVENTS):
        yield _asked(api, "small, all", b"{}")
