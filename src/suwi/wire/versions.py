"""The version table: every API that Suwi implements, with its versions.

`APIS` maps an API key to its entry, which also says who may use the API; `advertised` makes the
list for the ApiVersions response.
Invariant: the version ranges are those of Apache Kafka 4.3, because clients infer the broker's
features from them. An API is advertised only if it has a handler.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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


class Audience(Enum):
    """Who may send a request."""

    CLIENTS = "clients"
    """Every client that the listener admits."""
    PEERS = "peers"
    """Only authenticated brokers of this cluster: the API changes the cluster metadata."""


def _api(
    key: int,
    min_version: int,
    max_version: int,
    flexible_from: int | None,
    *,
    advertised_from: int | None = None,
    audience: Audience = Audience.CLIENTS,
    by_controller: bool = False,
    raw_body: bool = False,
) -> tuple[Any, ...]:
    """An entry of the table: see the fields of `Api`."""
    lowest = min_version if advertised_from is None else advertised_from
    return key, min_version, max_version, flexible_from, lowest, audience, by_controller, raw_body


class ApiKey(IntEnum):
    """Kafka's API keys, each with its lowest, its highest and its first flexible version."""

    _value_: int
    served: tuple[Any, ...]

    def __new__(cls, key: int, *served: Any) -> "ApiKey":
        member = int.__new__(cls, key)
        member._value_ = key
        member.served = served
        return member

    # KAFKA-18659: Kafka 4 removed Produce v0-v2 but advertises them, because librdkafka compresses
    # only if it sees them. A request with one of them closes the connection, as in Kafka.
    PRODUCE = _api(0, 3, 13, 9, advertised_from=0, raw_body=True)
    FETCH = _api(1, 4, 18, 12, raw_body=True)
    LIST_OFFSETS = _api(2, 1, 11, 6)
    METADATA = _api(3, 0, 13, 9)
    OFFSET_COMMIT = _api(8, 2, 10, 8, raw_body=True)
    OFFSET_FETCH = _api(9, 1, 10, 6)
    FIND_COORDINATOR = _api(10, 0, 6, 3)
    JOIN_GROUP = _api(11, 0, 9, 6)
    HEARTBEAT = _api(12, 0, 4, 4)
    LEAVE_GROUP = _api(13, 0, 5, 4)
    SYNC_GROUP = _api(14, 0, 5, 4)
    DESCRIBE_GROUPS = _api(15, 0, 6, 5)
    LIST_GROUPS = _api(16, 0, 5, 3)
    SASL_HANDSHAKE = _api(17, 0, 1, None)
    API_VERSIONS = _api(18, 0, 4, 3)
    CREATE_TOPICS = _api(19, 2, 7, 5, by_controller=True)
    DELETE_TOPICS = _api(20, 1, 6, 4, by_controller=True)
    DELETE_RECORDS = _api(21, 0, 2, 2)
    INIT_PRODUCER_ID = _api(22, 0, 5, 2)
    OFFSET_FOR_LEADER_EPOCH = _api(23, 2, 4, 4)
    ADD_PARTITIONS_TO_TXN = _api(24, 0, 5, 3)
    ADD_OFFSETS_TO_TXN = _api(25, 0, 4, 3)
    END_TXN = _api(26, 0, 5, 3)
    WRITE_TXN_MARKERS = _api(27, 1, 2, 1)
    TXN_OFFSET_COMMIT = _api(28, 0, 5, 3)
    DESCRIBE_ACLS = _api(29, 1, 3, 2)
    CREATE_ACLS = _api(30, 1, 3, 2, by_controller=True)
    DELETE_ACLS = _api(31, 1, 3, 2, by_controller=True)
    DESCRIBE_CONFIGS = _api(32, 1, 4, 4)
    ALTER_CONFIGS = _api(33, 0, 2, 2, by_controller=True)
    DESCRIBE_LOG_DIRS = _api(35, 1, 5, 2)
    SASL_AUTHENTICATE = _api(36, 0, 2, 2)
    CREATE_PARTITIONS = _api(37, 0, 3, 2, by_controller=True)
    DELETE_GROUPS = _api(42, 0, 2, 2)
    ELECT_LEADERS = _api(43, 0, 2, 2, by_controller=True)
    INCREMENTAL_ALTER_CONFIGS = _api(44, 0, 1, 1, by_controller=True)
    ALTER_PARTITION_REASSIGNMENTS = _api(45, 0, 1, 0, by_controller=True)
    LIST_PARTITION_REASSIGNMENTS = _api(46, 0, 0, 0, by_controller=True)
    OFFSET_DELETE = _api(47, 0, 0, None)
    DESCRIBE_CLIENT_QUOTAS = _api(48, 0, 1, 1)
    ALTER_CLIENT_QUOTAS = _api(49, 0, 1, 1, by_controller=True)
    DESCRIBE_USER_SCRAM_CREDENTIALS = _api(50, 0, 0, 0)
    ALTER_USER_SCRAM_CREDENTIALS = _api(51, 0, 0, 0, by_controller=True)
    ALTER_PARTITION = _api(56, 2, 3, 0, audience=Audience.PEERS, by_controller=True)
    UPDATE_FEATURES = _api(57, 0, 2, 0, by_controller=True)
    ENVELOPE = _api(58, 0, 0, 0, audience=Audience.PEERS, by_controller=True)
    DESCRIBE_CLUSTER = _api(60, 0, 2, 0)
    DESCRIBE_PRODUCERS = _api(61, 0, 0, 0)
    BROKER_HEARTBEAT = _api(63, 0, 1, 0, audience=Audience.PEERS, by_controller=True)
    UNREGISTER_BROKER = _api(64, 0, 0, 0, by_controller=True)
    DESCRIBE_TRANSACTIONS = _api(65, 0, 0, 0)
    LIST_TRANSACTIONS = _api(66, 0, 2, 0)
    ALLOCATE_PRODUCER_IDS = _api(67, 0, 0, 0, audience=Audience.PEERS, by_controller=True)
    CONSUMER_GROUP_HEARTBEAT = _api(68, 0, 1, 0)
    CONSUMER_GROUP_DESCRIBE = _api(69, 0, 1, 0)
    LIST_CONFIG_RESOURCES = _api(74, 0, 1, 0)
    DESCRIBE_TOPIC_PARTITIONS = _api(75, 0, 0, 0)
    # Suwi's own: see `handlers/describe_replicas.py`.
    DESCRIBE_REPLICAS = _api(20_000, 0, 0, 0, raw_body=True)
    DESCRIBE_BROKER = _api(20_001, 0, 0, 0, raw_body=True)
    REPORT_LOSS = _api(20_002, 0, 0, 0, audience=Audience.PEERS, by_controller=True, raw_body=True)
    DESCRIBE_EVENTS = _api(20_003, 0, 0, 0, raw_body=True)
    # Open to all clients: a broker is not authenticated before it has sent these two.
    PEER_CHALLENGE = _api(20_004, 0, 0, 0, raw_body=True)
    PEER_PROOF = _api(20_005, 0, 0, 0, raw_body=True)
    DESCRIBE_GROUP_HISTORY = _api(20_006, 0, 0, 0, raw_body=True)
    LIVE_TRANSACTIONS = _api(20_007, 0, 0, 0, raw_body=True)
    DESCRIBE_PARTITION_HISTORY = _api(20_008, 0, 0, 0, raw_body=True)
    DESCRIBE_TOPIC_STATS = _api(20_009, 0, 0, 0, raw_body=True)
    WATCH_PARTITION = _api(20_010, 0, 0, 0, raw_body=True)
    DESCRIBE_QUOTA_USAGE = _api(20_011, 0, 0, 0, raw_body=True)
    DESCRIBE_AUDIT_LOG = _api(20_012, 0, 0, 0, raw_body=True)


_SUWI_APIS_FROM: Final = ApiKey.DESCRIBE_REPLICAS


class Api(NamedTuple):
    """One API: its served and advertised versions, and the format of its headers."""

    key: ApiKey
    name: str
    min_version: int
    max_version: int
    flexible_from: int | None
    """The first version with compact fields and tags (KIP-482), which also changes the headers."""
    advertised_from: int
    """The lowest version in the ApiVersions response; below `min_version` for Produce only."""
    audience: Audience
    by_controller: bool
    """Only the controller handles it: other brokers forward the requests of clients."""
    raw_body: bool
    """Its handler decodes the body: with `wire.produce`, `wire.fetch_request`,
    `wire.offset_commit`, or as JSON."""

    @property
    def is_kafkas(self) -> bool:
        """The others are Suwi's own."""
        return self.key < _SUWI_APIS_FROM

    @property
    def is_advertised(self) -> bool:
        """Suwi's own APIs are not advertised: other clients do not know them."""
        return self.audience is Audience.CLIENTS and self.is_kafkas

    @property
    def is_forwarded(self) -> bool:
        return self.by_controller and self.audience is Audience.CLIENTS

    @property
    def parsed_bytes_max(self) -> int | None:
        """The maximum size of a request that dispatch decodes; None if the handler decodes it."""
        if self.raw_body:
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


APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        int(key): Api(key, "".join(word.capitalize() for word in key.name.split("_")), *key.served)
        for key in ApiKey
    }
)


def advertised(handled: Iterable[int]) -> tuple[Api, ...]:
    """The APIs to advertise, given the API keys that have handlers, in order of their keys."""
    return tuple(APIS[key] for key in sorted(handled) if APIS[key].is_advertised)
