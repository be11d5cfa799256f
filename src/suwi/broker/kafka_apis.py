"""The table of request handlers by API key, each created with its dependencies."""

from collections.abc import Callable
from dataclasses import dataclass

from suwi.controller.controller_election import ControllerElection
from suwi.controller.registration import BrokerIncarnation
from suwi.controller.scram_control import ScramDirectory
from suwi.env import Env
from suwi.env.problems import Problems
from suwi.group.group_coordinator import GroupCoordinator
from suwi.handlers.add_offsets_to_txn import AddOffsetsToTxn
from suwi.handlers.add_partitions_to_txn import AddPartitionsToTxn
from suwi.handlers.alter_configs import AlterConfigs
from suwi.handlers.alter_partition import AlterPartition
from suwi.handlers.alter_partition_reassignments import AlterPartitionReassignments
from suwi.handlers.alter_user_scram_credentials import AlterUserScramCredentials
from suwi.handlers.api_versions import ApiVersions
from suwi.handlers.broker_heartbeat import BrokerHeartbeat
from suwi.handlers.consumer_group_describe import ConsumerGroupDescribe
from suwi.handlers.consumer_group_heartbeat import ConsumerGroupHeartbeat
from suwi.handlers.create_partitions import CreatePartitions
from suwi.handlers.create_topics import CreateTopics
from suwi.handlers.delete_groups import DeleteGroups
from suwi.handlers.delete_records import DeleteRecords
from suwi.handlers.delete_topics import DeleteTopics
from suwi.handlers.describe_broker import DescribeBroker
from suwi.handlers.describe_cluster import DescribeCluster
from suwi.handlers.describe_configs import DescribeConfigs
from suwi.handlers.describe_events import DescribeEvents
from suwi.handlers.describe_group_history import DescribeGroupHistory
from suwi.handlers.describe_groups import DescribeGroups
from suwi.handlers.describe_log_dirs import DescribeLogDirs
from suwi.handlers.describe_producers import DescribeProducers
from suwi.handlers.describe_replicas import DescribeReplicas
from suwi.handlers.describe_topic_partitions import DescribeTopicPartitions
from suwi.handlers.describe_transactions import DescribeTransactions
from suwi.handlers.describe_user_scram_credentials import DescribeUserScramCredentials
from suwi.handlers.elect_leaders import ElectLeaders
from suwi.handlers.end_txn import EndTxn
from suwi.handlers.fetch import Fetch
from suwi.handlers.fetch_session_cache import FetchSessionCache
from suwi.handlers.find_coordinator import (
    GROUP,
    TRANSACTION,
    CoordinatorTopic,
    FindCoordinator,
)
from suwi.handlers.forwarding import Forwarding
from suwi.handlers.hanging_transactions import HangingTransactions
from suwi.handlers.heartbeat import Heartbeat
from suwi.handlers.init_producer_id import InitProducerId
from suwi.handlers.join_group import JoinGroup
from suwi.handlers.leave_group import LeaveGroup
from suwi.handlers.list_config_resources import ListConfigResources
from suwi.handlers.list_groups import ListGroups
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.list_partition_reassignments import ListPartitionReassignments
from suwi.handlers.list_transactions import ListTransactions
from suwi.handlers.live_transactions import LiveTransactions
from suwi.handlers.metadata import Metadata
from suwi.handlers.offset_commit import OffsetCommit
from suwi.handlers.offset_delete import OffsetDelete
from suwi.handlers.offset_fetch import OffsetFetch
from suwi.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from suwi.handlers.peer_handshake import PeerHandshake
from suwi.handlers.produce import Produce
from suwi.handlers.report_loss import ReportLoss
from suwi.handlers.sasl_authenticate import sasl_authenticate
from suwi.handlers.sasl_handshake import sasl_handshake
from suwi.handlers.sync_group import SyncGroup
from suwi.handlers.txn_offset_commit import TxnOffsetCommit
from suwi.handlers.unregister_broker import UnregisterBroker
from suwi.handlers.update_features import UpdateFeatures
from suwi.handlers.write_txn_markers import WriteTxnMarkers
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import MetadataStore
from suwi.model.broker_config import BrokerConfig
from suwi.model.features import GROUP_VERSION
from suwi.model.ids import NodeId
from suwi.net.dispatch import Handler
from suwi.replica.peers import SuspectedBrokers
from suwi.replica.replica_manager import ReplicaManager
from suwi.replica.replica_selector import RACK_AWARE, ReplicaSelector
from suwi.transaction.marker_appender import TxnMarkers
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_coordinator import TransactionCoordinator
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.versions import ApiKey, advertised


@dataclass(frozen=True, slots=True)
class KafkaApis:
    env: Env
    config: BrokerConfig
    store: MetadataStore
    follower: MetadataFollower
    replicas: ReplicaManager
    controller_election: ControllerElection
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

    def handlers(self) -> dict[int, Handler]:
        """By API key; requests that only the controller can serve are forwarded to it."""
        handlers = {
            **self._record_handlers(),
            **self._group_handlers(),
            **self._transaction_handlers(),
            **self._internal_topic_handlers(),
            **self._topic_handlers(),
            **self._cluster_handlers(),
            **self._inter_broker_handlers(),
        }
        handlers[ApiKey.API_VERSIONS] = ApiVersions(
            advertised([*handlers, ApiKey.API_VERSIONS]), lambda: self.follower.image.features
        )
        return self.forwarding.wrap(handlers)

    def _record_handlers(self) -> dict[int, Handler]:
        replicas = self.replicas
        return {
            ApiKey.PRODUCE: Produce(replicas, self.env.clock, self.verifier),
            ApiKey.FETCH: self._fetch(),
            ApiKey.LIST_OFFSETS: ListOffsets(replicas),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpoch(replicas),
            ApiKey.DELETE_RECORDS: DeleteRecords(replicas),
            ApiKey.DESCRIBE_PRODUCERS: DescribeProducers(replicas),
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

    def _group_handlers(self) -> dict[int, Handler]:
        replicas, runtime = self.replicas, self.groups.runtime
        metadata_bytes_max = self.config.offset_metadata_max_bytes
        return {
            ApiKey.JOIN_GROUP: JoinGroup(runtime),
            ApiKey.SYNC_GROUP: SyncGroup(runtime),
            ApiKey.HEARTBEAT: Heartbeat(runtime),
            ApiKey.LEAVE_GROUP: LeaveGroup(runtime),
            ApiKey.OFFSET_COMMIT: OffsetCommit(runtime, replicas, metadata_bytes_max),
            ApiKey.OFFSET_FETCH: OffsetFetch(runtime, replicas),
            ApiKey.OFFSET_DELETE: OffsetDelete(runtime, replicas),
            ApiKey.DESCRIBE_GROUPS: DescribeGroups(runtime),
            ApiKey.LIST_GROUPS: ListGroups(runtime),
            ApiKey.DELETE_GROUPS: DeleteGroups(runtime),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeat(
                runtime, lambda: self.follower.image.features.level(GROUP_VERSION) > 0
            ),
            ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribe(runtime, self.groups.topics),
        }

    def _internal_topic_handlers(self) -> dict[int, Handler]:
        """Those that make the topic of a coordinator."""
        groups, transactions, create = self.groups, self.transactions, self.forwarding.create_topic
        topics = {
            GROUP: CoordinatorTopic(groups.runtime, groups.new_topic, create),
            TRANSACTION: CoordinatorTopic(transactions.runtime, transactions.new_topic, create),
        }
        return {
            ApiKey.FIND_COORDINATOR: FindCoordinator(topics, self.replicas),
            ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxn(transactions.runtime, topics[GROUP]),
        }

    def _transaction_handlers(self) -> dict[int, Handler]:
        runtime, producer_ids = self.transactions.runtime, ProducerIds(self.store)
        timeout_ms_max = self.config.transaction_max_timeout_ms
        return {
            ApiKey.INIT_PRODUCER_ID: InitProducerId(producer_ids, runtime, timeout_ms_max),
            ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxn(runtime, self.replicas),
            ApiKey.END_TXN: EndTxn(producer_ids, runtime),
            ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactions(runtime),
            ApiKey.LIST_TRANSACTIONS: ListTransactions(runtime, self.env.clock),
            ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkers(
                self.txn_markers,
                HangingTransactions(self.replicas, self.txn_markers, self.transactions.search),
            ),
            ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommit(
                self.groups.runtime,
                self.replicas,
                self.verifier,
                self.config.offset_metadata_max_bytes,
            ),
        }

    def _topic_handlers(self) -> dict[int, Handler]:
        config, replicas, controller = self.config, self.replicas, self.controller_election
        node_id, create_topic = NodeId(config.node_id), self.forwarding.create_topic
        return {
            ApiKey.METADATA: Metadata(replicas, create_topic, config, self.suspected_brokers),
            ApiKey.CREATE_TOPICS: CreateTopics(replicas, controller, config, node_id),
            ApiKey.DELETE_TOPICS: DeleteTopics(controller, config),
            ApiKey.CREATE_PARTITIONS: CreatePartitions(controller),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitions(replicas),
            ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(replicas),
            ApiKey.ELECT_LEADERS: ElectLeaders(controller),
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: AlterPartitionReassignments(controller),
            ApiKey.LIST_PARTITION_REASSIGNMENTS: ListPartitionReassignments(controller),
        }

    def _cluster_handlers(self) -> dict[int, Handler]:
        replicas, controller = self.replicas, self.controller_election
        node_id, users = NodeId(self.config.node_id), ScramDirectory(self.follower)
        return {
            ApiKey.DESCRIBE_CLUSTER: DescribeCluster(replicas),
            ApiKey.UNREGISTER_BROKER: UnregisterBroker(controller),
            ApiKey.DESCRIBE_CONFIGS: DescribeConfigs(replicas, self.config, node_id),
            ApiKey.LIST_CONFIG_RESOURCES: ListConfigResources(replicas),
            ApiKey.ALTER_CONFIGS: AlterConfigs(controller, incremental=False),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: AlterConfigs(controller, incremental=True),
            ApiKey.UPDATE_FEATURES: UpdateFeatures(controller),
            ApiKey.SASL_HANDSHAKE: sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeUserScramCredentials(users),
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: AlterUserScramCredentials(controller),
        }

    def _inter_broker_handlers(self) -> dict[int, Handler]:
        """Includes Suwi's own APIs, which ApiVersions never lists."""
        replicas, controller = self.replicas, self.controller_election
        return {
            ApiKey.ALTER_PARTITION: AlterPartition(controller),
            ApiKey.BROKER_HEARTBEAT: BrokerHeartbeat(controller),
            ApiKey.DESCRIBE_BROKER: self._describe_broker(),
            ApiKey.DESCRIBE_EVENTS: DescribeEvents(replicas),
            ApiKey.DESCRIBE_GROUP_HISTORY: DescribeGroupHistory(
                self.groups.runtime, self.groups.history
            ),
            ApiKey.LIVE_TRANSACTIONS: LiveTransactions(self.transactions.runtime),
            ApiKey.REPORT_LOSS: ReportLoss(controller),
            ApiKey.DESCRIBE_REPLICAS: DescribeReplicas(replicas, NodeId(self.config.node_id)),
            ApiKey.PEER_CHALLENGE: self.handshake.challenge,
            ApiKey.PEER_PROOF: self.handshake.prove,
        }

    def _describe_broker(self) -> DescribeBroker:
        ensemble = self.config.zookeeper_connect
        store = f"ZooKeeper {ensemble}" if self.store.is_shared else "embedded"
        if self.config.zookeeper_ssl_client_enable:
            store += " (TLS)"
        recent = self.controller_election.elections.recent
        return DescribeBroker(
            self.incarnation, self.env.clock, store, self.store_state, self.problems, recent
        )
