"""The table of request handlers by API key, each created with its dependencies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from suwi.controller.controller_election import ControllerElection
from suwi.controller.registration import BrokerIncarnation
from suwi.controller.scram_control import ScramDirectory
from suwi.env import Env
from suwi.env.problems import Problems
from suwi.group.group_coordinator import GroupCoordinator
from suwi.handlers.acls import create_acls, delete_acls, describe_acls
from suwi.handlers.add_offsets_to_txn import add_offsets_to_txn
from suwi.handlers.add_partitions_to_txn import AddPartitionsToTxn
from suwi.handlers.alter_configs import AlterConfigs
from suwi.handlers.alter_partition import alter_partition
from suwi.handlers.api_versions import ApiVersions
from suwi.handlers.audit_log import AuditLog, audited
from suwi.handlers.authorization import guard
from suwi.handlers.broker_heartbeat import broker_heartbeat
from suwi.handlers.client_quotas import alter_client_quotas, describe_client_quotas
from suwi.handlers.consumer_group_describe import consumer_group_describe
from suwi.handlers.consumer_group_heartbeat import ConsumerGroupHeartbeat
from suwi.handlers.create_partitions import CreatePartitions
from suwi.handlers.create_topics import CreateTopics
from suwi.handlers.delete_groups import delete_groups
from suwi.handlers.delete_records import delete_records
from suwi.handlers.delete_topics import DeleteTopics
from suwi.handlers.describe_audit_log import describe_audit_log
from suwi.handlers.describe_broker import DescribeBroker
from suwi.handlers.describe_cluster import describe_cluster
from suwi.handlers.describe_configs import DescribeConfigs
from suwi.handlers.describe_events import describe_events
from suwi.handlers.describe_group_history import describe_group_history
from suwi.handlers.describe_groups import describe_groups
from suwi.handlers.describe_log_dirs import describe_log_dirs
from suwi.handlers.describe_partition_history import describe_partition_history
from suwi.handlers.describe_producers import describe_producers
from suwi.handlers.describe_quota_usage import describe_quota_usage
from suwi.handlers.describe_replicas import describe_replicas
from suwi.handlers.describe_topic_partitions import describe_topic_partitions
from suwi.handlers.describe_topic_stats import describe_topic_stats
from suwi.handlers.describe_transactions import describe_transactions
from suwi.handlers.elect_leaders import elect_leaders
from suwi.handlers.end_txn import end_txn
from suwi.handlers.fetch import Fetch
from suwi.handlers.fetch_session_cache import FetchSessionCache
from suwi.handlers.find_coordinator import GROUP, TRANSACTION, CoordinatorTopic, FindCoordinator
from suwi.handlers.forwarding import Forwarding
from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.heartbeat import Heartbeat
from suwi.handlers.init_producer_id import InitProducerId
from suwi.handlers.join_group import JoinGroup
from suwi.handlers.leave_group import LeaveGroup
from suwi.handlers.list_config_resources import ListConfigResources
from suwi.handlers.list_groups import list_groups
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.list_transactions import list_transactions
from suwi.handlers.live_transactions import live_transactions
from suwi.handlers.metadata import Metadata
from suwi.handlers.offset_commit import OffsetCommit
from suwi.handlers.offset_delete import offset_delete
from suwi.handlers.offset_fetch import OffsetFetch
from suwi.handlers.offset_for_leader_epoch import offset_for_leader_epoch
from suwi.handlers.partition_reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from suwi.handlers.peer_handshake import PeerHandshake
from suwi.handlers.produce import Produce
from suwi.handlers.report_loss import report_loss
from suwi.handlers.sasl import sasl_authenticate, sasl_handshake
from suwi.handlers.sync_group import SyncGroup
from suwi.handlers.txn_offset_commit import TxnOffsetCommit
from suwi.handlers.unregister_broker import unregister_broker
from suwi.handlers.update_features import update_features
from suwi.handlers.user_scram_credentials import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from suwi.handlers.watch_partition import WatchPartition
from suwi.handlers.write_txn_markers import write_txn_markers
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.partition_history import PartitionHistory
from suwi.metadata.store import MetadataStore
from suwi.model.broker_config import BrokerConfig
from suwi.model.features import GROUP_VERSION
from suwi.model.ids import NodeId
from suwi.net.client_quota_manager import ClientQuotaManager
from suwi.net.dispatch import Handler, Request
from suwi.replica.peers import SuspectedBrokers
from suwi.replica.replica_manager import ReplicaManager
from suwi.replica.replica_selector import RACK_AWARE, ReplicaSelector
from suwi.security.authorizer import Authorizer
from suwi.transaction.marker_appender import TxnMarkers
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator import TransactionCoordinator
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.versions import ApiKey, advertised

_OF_REPLICAS: Final[Mapping[int, Callable[[ReplicaManager, Request], Any]]] = {
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_EVENTS: describe_events,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
    ApiKey.DESCRIBE_TOPIC_STATS: describe_topic_stats,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}
_OF_CONTROLLER: Final[Mapping[int, Callable[[ControllerElection, Request], Any]]] = {
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.ALTER_PARTITION: alter_partition,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.BROKER_HEARTBEAT: broker_heartbeat,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.REPORT_LOSS: report_loss,
    ApiKey.UNREGISTER_BROKER: unregister_broker,
    ApiKey.UPDATE_FEATURES: update_features,
}
"""Handlers that need the controller, and nothing else; those above need the replicas."""


@dataclass(frozen=True, slots=True)
class KafkaApis:
    env: Env
    config: BrokerConfig
    store: MetadataStore
    follower: MetadataFollower
    replicas: ReplicaManager
    controller: ControllerElection
    forwarding: Forwarding
    suspected_brokers: SuspectedBrokers
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    txn_markers: TxnMarkers
    verifier: TransactionVerifier
    handshake: PeerHandshake
    incarnation: Callable[[], BrokerIncarnation]
    store_state: Callable[[], str]
    problems: Problems
    partition_history: PartitionHistory
    authorizer: Authorizer | None
    audit: AuditLog | None
    quotas: ClientQuotaManager
    brokers_user: str | None
    """The SCRAM user that brokers log in as; None if they log in otherwise."""

    def handlers(self) -> dict[int, Handler]:
        """By API key; requests that only the controller can serve are forwarded to it."""
        handlers: dict[int, Handler] = {
            **{key: partial(handle, self.replicas) for key, handle in _OF_REPLICAS.items()},
            **{key: partial(handle, self.controller) for key, handle in _OF_CONTROLLER.items()},
            **self._of_topics_and_brokers(),
            **self._of_groups(),
            **self._of_transactions(),
        }
        handlers[ApiKey.API_VERSIONS] = ApiVersions(
            advertised([*handlers, ApiKey.API_VERSIONS]), lambda: self.follower.image.features
        )
        if self.audit is not None:
            handlers = audited(handlers, self.audit)
        return self.forwarding.wrap(handlers if self.authorizer is None else guard(handlers))

    def _of_topics_and_brokers(self) -> dict[int, Handler]:
        config, replicas, controller = self.config, self.replicas, self.controller
        node_id, clock = NodeId(config.node_id), self.env.clock
        users = ScramDirectory(self.follower)
        create, history = self.forwarding.create_topic, self.partition_history
        return {
            ApiKey.PRODUCE: Produce(replicas, clock, self.verifier),
            ApiKey.FETCH: self._fetch(),
            ApiKey.LIST_OFFSETS: ListOffsets(replicas),
            ApiKey.METADATA: Metadata(replicas, create, config, self.suspected_brokers),
            ApiKey.CREATE_TOPICS: CreateTopics(replicas, controller, config, node_id),
            ApiKey.DELETE_TOPICS: DeleteTopics(replicas, controller, config),
            ApiKey.CREATE_PARTITIONS: CreatePartitions(replicas, controller),
            ApiKey.DESCRIBE_CONFIGS: DescribeConfigs(replicas, config, node_id),
            ApiKey.LIST_CONFIG_RESOURCES: ListConfigResources(replicas),
            ApiKey.ALTER_CONFIGS: AlterConfigs(controller, incremental=False),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: AlterConfigs(controller, incremental=True),
            ApiKey.SASL_HANDSHAKE: sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: partial(describe_user_scram_credentials, users),
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: partial(
                alter_user_scram_credentials, controller, self.brokers_user
            ),
            ApiKey.DESCRIBE_AUDIT_LOG: partial(describe_audit_log, self.audit),
            ApiKey.DESCRIBE_BROKER: self._describe_broker(),
            ApiKey.DESCRIBE_PARTITION_HISTORY: partial(describe_partition_history, history),
            ApiKey.DESCRIBE_QUOTA_USAGE: partial(describe_quota_usage, self.quotas),
            ApiKey.WATCH_PARTITION: WatchPartition(replicas, history, node_id, clock),
            ApiKey.DESCRIBE_REPLICAS: partial(describe_replicas, replicas, node_id),
            ApiKey.PEER_CHALLENGE: self.handshake.challenge,
            ApiKey.PEER_PROOF: self.handshake.prove,
        }

    def _of_groups(self) -> dict[int, Handler]:
        replicas, groups, runtime = self.replicas, self.groups, self.groups.runtime
        metadata_bytes_max = self.config.offset_metadata_max_bytes
        return {
            ApiKey.JOIN_GROUP: JoinGroup(runtime),
            ApiKey.SYNC_GROUP: SyncGroup(runtime),
            ApiKey.HEARTBEAT: Heartbeat(runtime),
            ApiKey.LEAVE_GROUP: LeaveGroup(runtime),
            ApiKey.OFFSET_COMMIT: OffsetCommit(runtime, replicas, metadata_bytes_max),
            ApiKey.OFFSET_FETCH: OffsetFetch(runtime, replicas),
            ApiKey.OFFSET_DELETE: partial(offset_delete, runtime, replicas),
            ApiKey.DESCRIBE_GROUPS: partial(describe_groups, runtime),
            ApiKey.LIST_GROUPS: partial(list_groups, runtime),
            ApiKey.DELETE_GROUPS: partial(delete_groups, runtime),
            ApiKey.DESCRIBE_GROUP_HISTORY: partial(describe_group_history, runtime, groups.history),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeat(
                runtime, lambda: self.follower.image.features.level(GROUP_VERSION) > 0
            ),
            ApiKey.CONSUMER_GROUP_DESCRIBE: partial(
                consumer_group_describe, runtime, groups.topics
            ),
        }

    def _of_transactions(self) -> dict[int, Handler]:
        config, replicas, groups = self.config, self.replicas, self.groups
        transactions, runtime = self.transactions, self.transactions.runtime
        markers = self.txn_markers
        create, producer_ids = self.forwarding.create_topic, ProducerIds(self.store)
        hanging = HangingTransactions(replicas, markers, transactions.search)
        topics = {
            GROUP: CoordinatorTopic(groups.runtime, groups.new_topic, create),
            TRANSACTION: CoordinatorTopic(runtime, transactions.new_topic, create),
        }
        return {
            ApiKey.FIND_COORDINATOR: FindCoordinator(topics, replicas),
            ApiKey.INIT_PRODUCER_ID: InitProducerId(
                producer_ids, runtime, config.transaction_max_timeout_ms
            ),
            ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxn(runtime, replicas),
            ApiKey.ADD_OFFSETS_TO_TXN: partial(add_offsets_to_txn, runtime, topics[GROUP]),
            ApiKey.END_TXN: partial(end_txn, producer_ids, runtime),
            ApiKey.DESCRIBE_TRANSACTIONS: partial(describe_transactions, runtime),
            ApiKey.LIST_TRANSACTIONS: partial(list_transactions, runtime, self.env.clock),
            ApiKey.LIVE_TRANSACTIONS: partial(live_transactions, runtime),
            ApiKey.WRITE_TXN_MARKERS: partial(write_txn_markers, markers, hanging),
            ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommit(
                groups.runtime, replicas, self.verifier, config.offset_metadata_max_bytes
            ),
        }

    def _fetch(self) -> Fetch:
        config, synced = self.config, self.follower.synced
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, self.env.random
        )
        selector = None
        if config.replica_selector_class.endswith(RACK_AWARE):
            selector = ReplicaSelector(NodeId(config.node_id), self.follower)
        return Fetch(self.replicas, sessions, config.fetch_max_bytes, synced, selector)

    def _describe_broker(self) -> DescribeBroker:
        ensemble = self.config.zookeeper_connect
        store = f"ZooKeeper {ensemble}" if self.store.is_shared else "embedded"
        if self.config.zookeeper_ssl_client_enable:
            store += " (TLS)"
        recent = self.controller.elections.recent
        config = self.config
        access = {
            "authorizer.class.name": config.authorizer_class_name,
            "super.users": config.super_users,
            "allow.everyone.if.no.acl.found": str(config.allow_everyone_if_no_acl_found).lower(),
        }
        return DescribeBroker(
            self.incarnation,
            self.env.clock,
            store,
            self.store_state,
            self.problems,
            recent,
            access,
            lambda: self.replicas.image.acls_sequence,  # as DescribeAcls, which reads this image
        )
