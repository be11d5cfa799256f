"""The configuration of a broker: Kafka's key names, parsed once; unknown keys are errors.

`parse_broker_config` makes a frozen `BrokerConfig` from properties. The fields of `BrokerConfig`
are the only table of broker keys; the defaults of topic keys are in `topic_config.py`.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from suwi.model.config_kinds import (
    INT32_MAX,
    INT64_MAX,
    BadConfig,
    BadValue,
    Kind,
    boolean,
    did_you_mean,
    double,
    int32,
    int64,
    key,
    keys_of,
    list_of,
    one_of,
    parse_value,
    principals,
    text,
)
from suwi.model.coordinator_config import check_consumer_groups
from suwi.model.keys_without_effect import (
    IGNORED_BROKER_KEYS,
    KEYS_WITHOUT_EFFECT,
    STATIC_KEYS_WITHOUT_EFFECT,
)
from suwi.model.security_config import (
    LISTENER_PREFIX,
    SECURITY_KEYS,
    Scope,
    SecurityConfig,
    split_scope,
)
from suwi.model.topic_config import TOPIC_KEYS, TopicConfig
from suwi.model.zookeeper_config import ZookeeperConfig

AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ZookeeperConfig):
    node_id: int = key(int32(0), 0).doc("The id of this broker in its cluster.")
    broker_rack: str = key(text(), "").doc(
        "The broker's rack. With several brokers in one process, `{node}` is replaced by each "
        "one's id."
    )
    listeners: tuple[str, ...] = key(list_of(), ("PLAINTEXT://127.0.0.1:9092",)).doc(
        "Where to listen: NAME://HOST:PORT, several separated by commas."
    )
    advertised_listeners: tuple[str, ...] = key(list_of(), ()).doc(
        "The addresses that clients connect to, by listener name; default: the listeners."
    )
    listener_security_protocol_map: tuple[str, ...] = key(list_of(), ()).doc(
        "The protocol of each listener name: NAME:PROTOCOL, with PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL. Names of protocols map to themselves."
    )
    log_dirs: tuple[str, ...] = key(list_of(), ("suwi-data",)).doc("The data directories.")
    num_partitions: int = key(int32(1), 1).doc("Partitions of a topic by default.")
    default_replication_factor: int = key(int32(1, 32767), 1).doc(
        "Replicas of a partition by default."
    )
    auto_create_topics_enable: bool = key(boolean(), True).doc(
        "Whether a metadata request for an unknown topic creates it."
    )
    delete_topic_enable: bool = key(boolean(), True).doc("Whether topics may be deleted.")
    socket_request_max_bytes: int = key(int32(1), 104_857_600).doc(
        "The largest request that is accepted."
    )
    max_connections: int = key(int32(0), INT32_MAX).doc("How many connections a broker accepts.")
    max_connections_per_ip: int = key(int32(0), INT32_MAX).doc(
        "How many connections are accepted from one address."
    )
    connections_max_idle_ms: int = key(int64(-1), 600_000).doc(
        "A connection without requests for this long is closed; -1: never."
    )
    fetch_max_bytes: int = key(int32(1024), 57_671_680).doc("The most bytes one fetch returns.")
    max_incremental_fetch_session_cache_slots: int = key(int32(0), 1000).doc(
        "How many incremental fetch sessions are kept."
    )
    log_retention_check_interval_ms: int = key(int64(1), 300_000).doc(
        "How often the broker checks for segments to delete."
    )
    log_cleaner_enable: bool = key(boolean(), True).doc(
        "Whether topics with `cleanup.policy=compact` are compacted; if not, they only grow."
    )
    log_cleaner_backoff_ms: int = key(int64(0), 15_000).doc(
        "How long the log cleaner waits, when no log needs compaction, before it checks again."
    )
    log_cleaner_dedupe_buffer_size: int = key(int64(0), 134_217_728).doc(
        "The memory for the keys of a log that is compacted, 32 bytes each. A log with more keys "
        "than fit is compacted in several rounds."
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        double(1, sys.float_info.max), sys.float_info.max
    ).doc("How much compaction reads and writes per second at most.")
    log_scrubber_io_max_bytes_per_second: float = key(
        double(0, sys.float_info.max), 1_048_576.0
    ).doc(
        "How many bytes of closed segments are read per second at most, to find damage before "
        "readers do; with the default 600 GB in a week. 0: nothing is read."
    )
    log_scrubber_interval_ms: int = key(int64(1), 604_800_000).doc(
        "How long after the start of one check of all closed segments the next one starts."
    )
    log_flush_scheduler_interval_ms: int = key(int64(1), 1000).doc(
        "How often the broker checks whether a log is due for a flush (`flush.ms`)."
    )
    log_flush_offset_checkpoint_interval_ms: int = key(int32(0), 60_000).doc(
        "How often the recovery point checkpoints are written."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = key(int32(0), 60_000).doc(
        "How often the log start offset checkpoints are written."
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(int64(1), 5000).doc(
        "How often the high watermark checkpoints are written."
    )
    inter_broker_listener_name: str = key(text(), "").doc(
        "The listener for connections between brokers; default: the first."
    )
    security_inter_broker_protocol: str = key(text(), "").doc(
        "Instead of inter.broker.listener.name: use the first listener with this protocol."
    )
    sasl_mechanism_inter_broker_protocol: str = key(text(), "").doc(
        "The SASL mechanism between brokers, if their listener uses SASL; user name and password "
        "are in listener.name.NAME.MECHANISM.sasl.jaas.config, the token of OAUTHBEARER in the "
        "file of sasl.oauthbearer.token.endpoint.url."
    )
    sasl_oauthbearer_allowed_urls: tuple[str, ...] = key(
        list_of(), (), name="org.apache.kafka.sasl.oauthbearer.allowed.urls"
    ).doc(
        "The URLs that `sasl.oauthbearer.jwks.endpoint.url` may have, as Kafka's system property "
        "of this name. Files need not be listed."
    )
    ssl_endpoint_identification_algorithm: str = key(text(), "https").doc(
        "How a broker checks that another broker's certificate matches its address; empty: no "
        "check."
    )
    controlled_shutdown_enable: bool = key(boolean(), True).doc(
        "Whether a stopping broker first moves its partition leaderships to other brokers."
    )
    auto_leader_rebalance_enable: bool = key(boolean(), True).doc(
        "Whether preferred leaders are elected again once they are in sync."
    )
    leader_imbalance_check_interval_seconds: int = key(int64(1), 300).doc(
        "How often the controller checks for partitions not led by their preferred leader."
    )
    replica_lag_time_max_ms: int = key(int64(1), 30_000).doc(
        "A follower that has not caught up for this long leaves the ISR."
    )
    replica_fetch_wait_max_ms: int = key(int32(0), 500).doc(
        "How long a leader may delay its response to a follower that has all records."
    )
    replica_fetch_min_bytes: int = key(int32(0), 1).doc(
        "How many bytes a leader gathers before it responds to a follower."
    )
    replica_fetch_max_bytes: int = key(int32(0), 1024 * 1024).doc(
        "How many bytes of one partition a follower fetches at once."
    )
    replica_fetch_response_max_bytes: int = key(int32(0), 10 * 1024 * 1024).doc(
        "How many bytes a follower fetches at once."
    )
    replica_fetch_backoff_ms: int = key(int32(1), 1000).doc(
        "How long a follower waits at most after a failed fetch."
    )
    replica_socket_timeout_ms: int = key(int32(1), 30_000).doc(
        "A follower that gets no response for this long reconnects to its leader."
    )
    leader_throttled_rate: int = key(
        int64(1), INT64_MAX, name="leader.replication.throttled.rate"
    ).doc(
        "How many bytes per second this broker, as leader, sends to throttled replicas outside the "
        "ISR; see leader.replication.throttled.replicas."
    )
    follower_throttled_rate: int = key(
        int64(1), INT64_MAX, name="follower.replication.throttled.rate"
    ).doc(
        "How many bytes per second the throttled replicas of this broker copy until they have "
        "caught up; see follower.replication.throttled.replicas."
    )
    replica_selector_class: str = key(text(), "").doc(
        "With org.apache.kafka.common.replica.RackAwareReplicaSelector, consumers read from a "
        "replica in their own rack (client.rack). Empty: from the leader."
    )
    producer_id_expiration_ms: int = key(int32(1), 86_400_000).doc(
        "How long an idle producer's last sequence numbers are remembered."
    )
    producer_id_expiration_check_interval_ms: int = key(int32(1), 600_000).doc(
        "How often the broker checks for expired producers."
    )
    authorizer_class_name: str = key(one_of("", *AUTHORIZERS), "").doc(
        "Switches access rules on: org.apache.kafka.metadata.authorizer.StandardAuthorizer, or "
        "kafka.security.authorizer.AclAuthorizer, which is the same. Empty: every client may do "
        "everything.",
    )
    super_users: str = key(principals(), "").doc(
        "Who may do everything, whatever the rules are: User:NAME, separated by semicolons.",
    )
    allow_everyone_if_no_acl_found: bool = key(boolean(), False).doc(
        "Whether everyone may use a resource that no access rule is about. Useful while rules are "
        "being written for a cluster that had none.",
    )
    audit_log_dir: str = key(text(), "").doc(
        "The directory of the audit log: who changed what (audit-ID.log), and what was refused "
        "(audit-ID-refused.log). "
        "Empty: there is none.",
    )
    topic: TopicConfig = field(default_factory=TopicConfig)
    """The defaults of topic configurations."""
    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The given values as text, secrets included, by the key names in the tables."""
    scoped: Mapping[Scope, Mapping[str, Any]] = field(default_factory=dict)
    """The values given for a listener or for one of its mechanisms, by attribute name."""

    def security_of(self, listener: str, mechanism: str = "") -> SecurityConfig:
        """The security settings in effect for a listener, or for one of its mechanisms."""
        values = {attribute: getattr(self, attribute) for attribute, _ in SECURITY_KEYS.values()}
        values.update(self.scoped.get(Scope(listener), {}))
        if mechanism:
            values.update(self.scoped.get(Scope(listener, mechanism), {}))
        return SecurityConfig(**values)


BROKER_KEYS = dict(sorted(keys_of(BrokerConfig).items(), key=lambda k: k[0] in SECURITY_KEYS))

# Alternative names of keys, each with the name that Suwi uses.
SYNONYMS = {"broker.id": "node.id", "log.dir": "log.dirs"}

_NO_STORE_PASSWORD = (
    "PEM files have no store password (an encrypted key has ssl.key.password); JKS and PKCS12 "
    "stores are not supported: convert them with `keytool -importkeystore -deststoretype PKCS12` "
    "and `openssl pkcs12 -in store.p12 -out store.pem`"
)
# Kafka's keys that Suwi refuses because it does not support them, with a workaround.
_REFUSED = {
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "ssl.truststore.password": _NO_STORE_PASSWORD,
}


class ParsedConfig(NamedTuple):
    config: BrokerConfig
    ignored: tuple[str, ...]
    """The given keys that have no effect here."""


def parse_broker_config(properties: Mapping[str, str]) -> ParsedConfig:
    """Parse Kafka's properties. Raises `BadConfig` for an unknown key or an invalid value."""
    broker: dict[str, Any] = {}
    topic: dict[str, Any] = {}
    ignored: list[str] = []
    scoped: dict[Scope, dict[str, Any]] = {}
    ranks: dict[str, int] = {}
    for given, value in properties.items():
        name = SYNONYMS.get(given, given)
        if name in BROKER_KEYS:
            attribute, declared = BROKER_KEYS[name]
            broker[attribute] = _parse(given, declared.kind, value)
        elif name in _TOPIC_DEFAULTS:
            attribute, kind, factor, rank = _TOPIC_DEFAULTS[name]
            if rank <= ranks.get(attribute, rank):  # Kafka: ms before minutes before hours
                ranks[attribute] = rank
                topic[attribute] = _parse(given, kind, value, factor)
        elif name in IGNORED_BROKER_KEYS:
            declared_only = KEYS_WITHOUT_EFFECT | STATIC_KEYS_WITHOUT_EFFECT
            if name in declared_only:
                _parse(given, declared_only[name].kind, value)
            ignored.append(given)
        elif (scope := split_scope(name)) is not None:
            attribute, declared = SECURITY_KEYS[scope[1]]
            scoped.setdefault(scope[0], {})[attribute] = _parse(given, declared.kind, value)
        else:
            raise _unknown(given)
    given_by_name = {SYNONYMS.get(name, name): value for name, value in properties.items()}
    config = BrokerConfig(
        topic=dataclasses.replace(TopicConfig(), **topic),
        given=given_by_name,
        scoped=scoped,
        **broker,
    )
    check_consumer_groups(config)
    return ParsedConfig(config, tuple(ignored))


def _parse(name: str, kind: Kind, value: str, factor: int = 1) -> Any:
    if factor == 1:
        return parse_value(name, kind, value)
    try:
        scaled = int(value)
        return kind.parse(str(scaled if scaled < 0 else scaled * factor))
    except BadValue as error:
        raise BadConfig(f"invalid value {value!r} for configuration {name}: {error}") from None
    except ValueError:
        raise BadConfig(
            f"invalid value {value!r} for configuration {name}: allowed: a whole number"
        ) from None


def _unknown(name: str) -> BadConfig:
    for refused, reason in _REFUSED.items():
        if name.endswith(refused):
            return BadConfig(f"configuration {name} is not supported: {reason}")
    return BadConfig(f"unknown configuration {name!r}{_suggestion(name)}")


def _suggestion(name: str) -> str:
    return did_you_mean(name, [*BROKER_KEYS, *_TOPIC_DEFAULTS, *SYNONYMS])


_TOPIC_DEFAULTS: dict[str, tuple[str, Kind, int, int]] = {
    broker_name: (attribute, declared.kind, factor, rank)
    for attribute, declared in TOPIC_KEYS.values()
    for rank, (broker_name, factor) in enumerate(declared.broker_names)
}


DYNAMIC_BROKER_KEYS = frozenset(
    {
        *_TOPIC_DEFAULTS,
        *KEYS_WITHOUT_EFFECT,
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connections",
        "max.connections.per.ip",
        "transaction.partition.verification.enable",
    }
)
"""The keys that can be changed while the broker runs."""


def resembles_key(name: str) -> bool:
    """Whether an unknown name looks like a misspelt or unsupported key."""
    is_refused = name.endswith(tuple(_REFUSED))
    return is_refused or name.startswith(LISTENER_PREFIX) or bool(_suggestion(name))


def rack_of(rack: str, node_id: int) -> str:
    """The rack of one broker; several brokers in one process share the setting."""
    return rack.replace("{node}", str(node_id))


def is_broker_key(name: str) -> bool:
    """Whether a key has an effect here."""
    known = SYNONYMS.get(name, name) in BROKER_KEYS or name in _TOPIC_DEFAULTS
    return known or split_scope(name) is not None
