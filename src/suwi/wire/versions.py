"""The version table: every API that Suwi implements, with its versions.

`APIS` maps an API key to its entry, which also says who may use the API; `advertised` makes the
list for the ApiVersions response.
Invariant: the version ranges are those of Apache Kafka 4.3, because clients infer the broker's
features from them. An API is advertised only if it has a handler.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

# kio's objects take about 25 times the memory of the encoded bytes. No legitimate request except
# Produce comes near this size, so dispatch rejects a larger one before it is decoded.
SMALL_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024

# All array items and tags of one request: topics, partitions, settings, replicas. Each may cost the
# broker a kilobyte and ten microseconds, however small it is on the wire.
REQUEST_ITEMS_MAX: Final = 100_000

# Requests of Suwi's own APIs are JSON; the worst case of this size takes 10 ms to decode.
CLIENT_JSON_BYTES_MAX: Final = 64 * 1024

# What an envelope adds to the inner request: the client's id, host and principal.
_ENVELOPE_BYTES_MAX: Final = 64 * 1024


class ApiKey(IntEnum):
    """Kafka's API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    DESCRIBE_REPLICAS = 20_000
    DESCRIBE_BROKER = 20_001
    REPORT_LOSS = 20_002
    DESCRIBE_EVENTS = 20_003
    PEER_CHALLENGE = 20_004
    PEER_PROOF = 20_005
    DESCRIBE_GROUP_HISTORY = 20_006
    LIVE_TRANSACTIONS = 20_007
    """Suwi's own: see `handlers/describe_replicas.py`."""


# The handlers of these APIs decode the body themselves: with `wire.produce`, `wire.fetch_request`,
# `wire.offset_commit`, or as JSON.
RAW_BODY: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.OFFSET_COMMIT,
        ApiKey.DESCRIBE_REPLICAS,
        ApiKey.DESCRIBE_BROKER,
        ApiKey.REPORT_LOSS,
        ApiKey.DESCRIBE_EVENTS,
        ApiKey.PEER_CHALLENGE,
        ApiKey.PEER_PROOF,
        ApiKey.DESCRIBE_GROUP_HISTORY,
        ApiKey.LIVE_TRANSACTIONS,
    }
)

_SUWI_APIS_FROM: Final = ApiKey.DESCRIBE_REPLICAS


class Audience(Enum):
    """Who may send a request."""

    CLIENTS = "clients"
    """Every client that the listener admits."""
    PEERS = "peers"
    """Only authenticated brokers of this cluster: the API changes the cluster metadata."""


class Api(NamedTuple):
    """One API: its served and advertised versions, and the format of its headers."""

    key: ApiKey
    name: str
    schema: str
    """The name of its package in kio."""
    min_version: int
    max_version: int
    flexible_from: int | None
    """The first version with compact fields and tags (KIP-482), which also changes the headers."""
    advertised_from: int
    """The lowest version in the ApiVersions response; below `min_version` for Produce only."""
    audience: Audience
    by_controller: bool
    """Only the controller handles it: other brokers forward the requests of clients."""

    @property
    def is_advertised(self) -> bool:
        """Suwi's own APIs are not advertised: other clients do not know them."""
        return self.audience is Audience.CLIENTS and self.key < _SUWI_APIS_FROM

    @property
    def is_forwarded(self) -> bool:
        return self.by_controller and self.audience is Audience.CLIENTS

    @property
    def parsed_bytes_max(self) -> int | None:
        """The maximum size of a request that dispatch decodes; None if the handler decodes it."""
        if self.key in RAW_BODY:
            return None
        extra_bytes = _ENVELOPE_BYTES_MAX if self.key is ApiKey.ENVELOPE else 0
        return SMALL_REQUEST_BYTES_MAX + extra_bytes

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def response_header_has_tags(self, version: int) -> bool:
        # KIP-511: a client that sent too high a version must still find the correlation id.
        return self.key != ApiKey.API_VERSIONS and self.is_flexible(version)


def _entry(
    key: ApiKey,
    min_version: int,
    max_version: int,
    flexible_from: int | None,
    *,
    advertised_from: int | None = None,
    audience: Audience = Audience.CLIENTS,
    by_controller: bool = False,
) -> Api:
    return Api(
        key=key,
        name="".join(word.capitalize() for word in key.name.split("_")),
        schema=key.name.lower(),
        min_version=min_version,
        max_version=max_version,
        flexible_from=flexible_from,
        advertised_from=min_version if advertised_from is None else advertised_from,
        audience=audience,
        by_controller=by_controller,
    )


def _peers(key: ApiKey, min_version: int, max_version: int) -> Api:
    """An API with which brokers call the controller."""
    return _entry(key, min_version, max_version, 0, audience=Audience.PEERS, by_controller=True)


_ENTRIES = (
    # KAFKA-18659: Kafka 4 removed Produce v0-v2 but advertises them, because librdkafka compresses
    # only if it sees them. A request with one of them closes the connection, as in Kafka.
    _entry(ApiKey.PRODUCE, 3, 13, 9, advertised_from=0),
    _entry(ApiKey.FETCH, 4, 18, 12),
    _entry(ApiKey.LIST_OFFSETS, 1, 11, 6),
    _entry(ApiKey.METADATA, 0, 13, 9),
    _entry(ApiKey.OFFSET_COMMIT, 2, 10, 8),
    _entry(ApiKey.OFFSET_FETCH, 1, 10, 6),
    _entry(ApiKey.FIND_COORDINATOR, 0, 6, 3),
    _entry(ApiKey.JOIN_GROUP, 0, 9, 6),
    _entry(ApiKey.HEARTBEAT, 0, 4, 4),
    _entry(ApiKey.LEAVE_GROUP, 0, 5, 4),
    _entry(ApiKey.SYNC_GROUP, 0, 5, 4),
    _entry(ApiKey.DESCRIBE_GROUPS, 0, 6, 5),
    _entry(ApiKey.LIST_GROUPS, 0, 5, 3),
    _entry(ApiKey.SASL_HANDSHAKE, 0, 1, None),
    _entry(ApiKey.API_VERSIONS, 0, 4, 3),
    _entry(ApiKey.CREATE_TOPICS, 2, 7, 5, by_controller=True),
    _entry(ApiKey.DELETE_TOPICS, 1, 6, 4, by_controller=True),
    _entry(ApiKey.DELETE_RECORDS, 0, 2, 2),
    _entry(ApiKey.INIT_PRODUCER_ID, 0, 5, 2),
    _entry(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
    _entry(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3),
    _entry(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3),
    _entry(ApiKey.END_TXN, 0, 5, 3),
    _entry(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1),
    _entry(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3),
    _entry(ApiKey.DESCRIBE_ACLS, 1, 3, 2),
    _entry(ApiKey.CREATE_ACLS, 1, 3, 2),
    _entry(ApiKey.DELETE_ACLS, 1, 3, 2),
    _entry(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4),
    _entry(ApiKey.ALTER_CONFIGS, 0, 2, 2, by_controller=True),
    _entry(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2),
    _entry(ApiKey.SASL_AUTHENTICATE, 0, 2, 2),
    _entry(ApiKey.CREATE_PARTITIONS, 0, 3, 2, by_controller=True),
    _entry(ApiKey.DELETE_GROUPS, 0, 2, 2),
    _entry(ApiKey.ELECT_LEADERS, 0, 2, 2, by_controller=True),
    _entry(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, by_controller=True),
    _entry(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, by_controller=True),
    _entry(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, by_controller=True),
    _entry(ApiKey.OFFSET_DELETE, 0, 0, None),
    _entry(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
    _entry(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
    _entry(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    _entry(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0, by_controller=True),
    _peers(ApiKey.ALTER_PARTITION, 2, 3),
    _entry(ApiKey.UPDATE_FEATURES, 0, 2, 0, by_controller=True),
    _peers(ApiKey.ENVELOPE, 0, 0),
    _entry(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0),
    _entry(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
    _peers(ApiKey.BROKER_HEARTBEAT, 0, 1),
    _entry(ApiKey.UNREGISTER_BROKER, 0, 0, 0, by_controller=True),
    _entry(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
    _entry(ApiKey.LIST_TRANSACTIONS, 0, 2, 0),
    _peers(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0),
    _entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0),
    _entry(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0),
    _entry(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0),
    _entry(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
    _entry(ApiKey.DESCRIBE_REPLICAS, 0, 0, 0),
    _entry(ApiKey.DESCRIBE_BROKER, 0, 0, 0),
    _peers(ApiKey.REPORT_LOSS, 0, 0),
    _entry(ApiKey.DESCRIBE_EVENTS, 0, 0, 0),
    _entry(ApiKey.DESCRIBE_GROUP_HISTORY, 0, 0, 0),
    _entry(ApiKey.LIVE_TRANSACTIONS, 0, 0, 0),
    # Open to all clients: a broker is not authenticated before it has sent these.
    _entry(ApiKey.PEER_CHALLENGE, 0, 0, 0),
    _entry(ApiKey.PEER_PROOF, 0, 0, 0),
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _ENTRIES})


def advertised(handled: Iterable[int]) -> tuple[Api, ...]:
    """The APIs to advertise, given the API keys that have handlers, in order of their keys."""
    return tuple(APIS[key] for key in sorted(handled) if APIS[key].is_advertised)
