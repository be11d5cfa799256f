"""One broker: its data directory, its store, its listeners, and how they start and stop.

`start` returns when clients can be served, `stop` when everything is on disk.
"""

import asyncio
import logging

from suwi.broker.compaction import Compaction
from suwi.broker.controllership import Controllership
from suwi.broker.farewell import hand_over
from suwi.broker.forwarding import FORWARDER, Forwarding
from suwi.broker.housekeeping import Housekeeping
from suwi.broker.lifelines import Lifelines
from suwi.broker.listeners import parse_listeners
from suwi.broker.loss_reports import LossReports
from suwi.broker.membership import Membership
from suwi.broker.peer_security import connect_to_peers, listener_between_brokers
from suwi.broker.security import ListenerSecurity, ScramUsers
from suwi.broker.surveyor import Surveyor
from suwi.controller.scram_admin import ScramDirectory
from suwi.env import Env
from suwi.handlers.alter_configs import AlterConfigs
from suwi.handlers.alter_partition import AlterPartition
from suwi.handlers.alter_user_scram_credentials import AlterUserScramCredentials
from suwi.handlers.api_versions import ApiVersions
from suwi.handlers.broker_heartbeat import BrokerHeartbeat
from suwi.handlers.create_partitions import CreatePartitions
from suwi.handlers.create_topics import CreateTopics
from suwi.handlers.delete_records import DeleteRecords
from suwi.handlers.delete_topics import DeleteTopics
from suwi.handlers.describe_broker import BrokerLife, DescribeBroker
from suwi.handlers.describe_cluster import DescribeCluster
from suwi.handlers.describe_configs import DescribeConfigs
from suwi.handlers.describe_events import DescribeEvents
from suwi.handlers.describe_log_dirs import DescribeLogDirs
from suwi.handlers.describe_producers import DescribeProducers
from suwi.handlers.describe_replicas import DescribeReplicas
from suwi.handlers.describe_topic_partitions import DescribeTopicPartitions
from suwi.handlers.describe_user_scram_credentials import DescribeUserScramCredentials
from suwi.handlers.elect_leaders import ElectLeaders
from suwi.handlers.fetch import Fetch
from suwi.handlers.fetch_sessions import FetchSessions
from suwi.handlers.find_coordinator import find_coordinator
from suwi.handlers.init_producer_id import InitProducerId
from suwi.handlers.list_offsets import ListOffsets
from suwi.handlers.metadata import Metadata
from suwi.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from suwi.handlers.produce import Produce
from suwi.handlers.report_loss import ReportLoss
from suwi.handlers.sasl_authenticate import sasl_authenticate
from suwi.handlers.sasl_handshake import sasl_handshake
from suwi.log.checkpoints import topic_id_text
from suwi.log.file_cache import FileCache, raise_open_file_limit
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import ForeignDirectory, Identity
from suwi.log.names import CLEAN_SHUTDOWN
from suwi.metadata.follower import MetadataFollower
from suwi.metadata.image import CLUSTER, BrokerInfo, ClusterImage, Endpoint
from suwi.metadata.store import ABSENT, MetadataStore, Put
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.net.connection import Dispatch
from suwi.net.dispatch import Dispatcher, Handler
from suwi.net.limits import Limits
from suwi.net.listener import Budget, Listener
from suwi.net.stats import Measured, NetStats
from suwi.replica.copying import PeerCopying
from suwi.replica.doubts import Doubts
from suwi.replica.nearest import RACK_AWARE, NearestReplica
from suwi.replica.partition import Partition
from suwi.replica.peers import Peers
from suwi.replica.replicas import Replicas
from suwi.txn.producer_ids import ProducerIds
from suwi.wire.versions import ApiKey, advertised

log = logging.getLogger(__name__)

# Of what the process may open. The rest is for those connections that need a second descriptor, and
# for the store: a log that cannot be opened because peers hold everything would go offline.
_OPEN_FILES_FOR_LOGS = 0.5
_OPEN_FILES_FOR_CONNECTIONS = 0.4


class Broker:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        store: MetadataStore,
        *,
        stats: NetStats | None = None,
        adopts: bool = False,
        sharing: int = 1,
    ) -> None:
        """`stats`: count requests there, for metrics. `adopts`: make topics of data that the
        metadata does not know. `sharing`: how many brokers there are in this process."""
        self.config = config
        self.node_id = NodeId(config.node_id)
        self.cluster_id = ""
        self.listeners: list[Listener] = []
        self._env = env
        self._store = store
        self._stats = stats
        self._adopts = adopts
        self._specs = parse_listeners(config)
        open_files_max = raise_open_file_limit() // sharing
        self._descriptors_max = int(open_files_max * _OPEN_FILES_FOR_CONNECTIONS)
        self._budget = Budget(self._limits(config))
        files = FileCache(env.disk, int(open_files_max * _OPEN_FILES_FOR_LOGS))
        self.directories = LogDirectories(env, config.log_dirs, files)
        self.replicas = Replicas(
            self.node_id,
            self.directories,
            env.clock,
            config,
            self._put_away,
            lambda loss: self._loss_reports.add(loss),
        )
        self._housekeeping = Housekeeping(env, config, self.directories, self.replicas)
        self._follower = MetadataFollower(store, self._follow)
        self._doubts = Doubts(self._follower)
        self._copying: PeerCopying | None = None
        self._peers = self._connect_as()
        self._membership = Membership(
            self.node_id,
            store,
            self._describe,
            lambda: self.directories.lost_power,
            self.replicas.live_as,
        )
        self.controllership = Controllership(
            self.node_id,
            store,
            self._follower,
            self._membership,
            env,
            config,
            Surveyor(self._peers).survey,
            self._follow_office,
        )
        self._lifelines = Lifelines(
            self.node_id, store, self._peers, lambda: self.replicas.image, self.controllership
        )
        self._loss_reports = LossReports(self.node_id, self._peers, self.controllership)
        self._is_stopping = False
        self._forwarding = Forwarding(
            self.controllership, self._connect_as(FORWARDER), self._follower
        )
        self._scram_users = ScramUsers(lambda: self.replicas.image)
        self._security = [
            ListenerSecurity.of(spec, config, env, self._scram_users) for spec in self._specs
        ]

    @property
    def endpoints(self) -> list[Endpoint]:
        """What clients are told to connect to."""
        return [
            Endpoint(
                spec.name,
                spec.advertised_host or _reachable(spec.host),
                spec.advertised_port or listener.port,
            )
            for spec, listener in zip(self._specs, self.listeners, strict=True)
        ]

    def _describe(self) -> BrokerInfo:
        rack = self.config.broker_rack.replace("{node}", str(self.node_id))
        return BrokerInfo(self.node_id, tuple(self.endpoints), rack or None)

    def _connect_as(self, client_id: str | None = None) -> Peers:
        between = listener_between_brokers(self.config, self._specs)
        connect = connect_to_peers(self.config, between, self._env, client_id)
        return Peers(lambda: self.replicas.image, between.name, connect, self._doubts)

    @property
    def compaction(self) -> Compaction:
        return self._housekeeping.compaction

    # -- starting ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises DirectoryInUse, ForeignDirectory, IdInUse, OSError."""
        try:
            self.directories.open()
            await self._start()
        except BaseException:
            # Where nothing was touched yet, what was whole before is so still.
            untouched = not any(partition.is_open for partition in self.replicas)
            await self._leave()
            for directory in self.directories:
                directory.close(clean=untouched and directory.was_clean)
            raise

    async def _start(self) -> None:
        identity = await self._identify()
        await self._scram_users.load(self._store, self._env)
        await self._follower.start()
        # What this broker has written must not seem to be of an epoch that is yet to come.
        await self._follower.synced()
        await self._recover()
        for directory in self.directories.usable():
            directory.begin()
        dispatcher = Dispatcher(self._handlers())
        await self._listen(Measured(dispatcher, self._stats) if self._stats else dispatcher)
        self._copying = PeerCopying(self.node_id, self._peers, self.config, self.replicas)
        self.replicas.copying = self._copying
        await self._membership.join()
        self.controllership.start()
        await self._follower.registered(self.node_id, lambda: self._membership.epoch)
        self.directories.trust()
        if self._adopts:
            await self._adopt()
        self._housekeeping.start()
        for directory in self.directories.usable():
            for path in directory.leftovers():
                self._housekeeping.remove_dir(path, 0)
        self.cluster_id = identity.cluster_id

    async def _identify(self) -> Identity:
        """Raises ForeignDirectory."""
        cluster_id = await self._cluster_id()
        identity = self.directories.identify(self.node_id, cluster_id)
        if identity.cluster_id != cluster_id:
            raise ForeignDirectory(
                f"{self.config.log_dirs[0]} belongs to cluster {identity.cluster_id}, "
                f"the metadata to {cluster_id}"
            )
        return identity

    async def _cluster_id(self) -> str:
        while True:
            known = await self._store.read(CLUSTER)
            if known is not None:
                return known.value.decode()
            # Of several that start at once one gives the cluster its id.
            new = self.directories.known_cluster_id() or topic_id_text(self._env.random.uuid())
            await self._store.write([Put(CLUSTER, new.encode(), ABSENT)])
            await self._store.sync()

    async def _recover(self) -> None:
        """After an unclean stop: check every log before anybody reads it."""
        self._put_away_deleted()
        known = {partition.partition: partition for partition in self.replicas}
        to_recover: list[Partition] = []
        for directory in self.directories.usable():
            found = directory.found_partitions()
            strangers = [str(tp) for tp in found if tp not in known]
            if strangers and not self._adopts:
                log.warning("directories of unknown topics left alone", extra={"dirs": strangers})
            if not directory.was_clean:
                to_recover += [known[tp] for tp in found if tp in known]
        if to_recover:
            log.info("recovering after an unclean stop", extra={"partitions": len(to_recover)})
        loop = asyncio.get_running_loop()
        for partition in to_recover:
            # Nothing else uses the logs yet, so the job may open them where they will stay.
            try:
                await loop.run_in_executor(None, partition.open)
            except BrokerError as error:
                # Its directory is out of use; partitions in others need not suffer.
                log.error(
                    "cannot recover",
                    extra={"partition": str(partition.partition), "reason": str(error)},
                )

    def _put_away_deleted(self) -> None:
        """Topics that were deleted while this broker was away.

        After a power loss a directory may not say whose it is. Nothing in it was ever synced, and
        it may be that of a topic that is gone: so it goes, too.
        """
        image = self.replicas.image
        deleted = image.deletions.get(self.node_id, frozenset())
        for directory in self.directories.usable():
            for tp in directory.found_partitions():
                is_known = tp.topic in image.topics
                if not deleted and (is_known or self._adopts):
                    continue
                topic_id = directory.topic_id_of(tp)
                if topic_id in deleted or (topic_id is None and not self._adopts):
                    path = directory.put_away(tp)
                    if path is not None:
                        self._put_away(path)
                    self.directories.forget(tp)

    async def _listen(self, dispatch: Dispatch) -> None:
        budget = self._budget
        for spec, security in zip(self._specs, self._security, strict=True):
            listener = Listener(
                spec.name,
                spec.host,
                spec.port,
                security.guard(dispatch),
                budget,
                tls=security.tls,
                limits=security.limits(budget.limits),
            )
            await listener.start()
            self.listeners.append(listener)

    def _limits(self, config: BrokerConfig) -> Limits:
        idle_ms = config.connections_max_idle_ms
        return Limits(
            request_bytes_max=config.socket_request_max_bytes,
            connections_max=min(config.max_connections, self._descriptors_max),
            connections_per_ip_max=config.max_connections_per_ip,
            idle_ms_max=idle_ms if idle_ms >= 0 else 2**62,
        )

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        self.replicas.follow(old, new)
        self._lifelines.follow()
        if new.broker_configs != old.broker_configs:
            effective = {**self.config.given, **new.dynamic_config(self.node_id)}
            self._budget.limits = self._limits(parse_broker_config(effective).config)

    def _follow_office(self) -> None:
        self._lifelines.follow()

    async def _adopt(self) -> None:
        from suwi.broker.adoption import adopt  # Rarely wanted, and start-up counts.

        await self.controllership.in_office()
        known, topics = self.replicas.image.topics, self.controllership.topics
        defaults = self.config.topic
        await adopt(self.directories, self._store, known, topics, self.node_id, defaults)

    def _handlers(self) -> dict[int, Handler]:
        config, replicas, office = self.config, self.replicas, self.controllership
        by_controller = self._forwarding.wrap
        sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, self._env.random)
        handlers: dict[int, Handler] = {
            ApiKey.PRODUCE: Produce(replicas, self._env.clock),
            ApiKey.FETCH: Fetch(
                replicas, sessions, config.fetch_max_bytes, self._follower.synced, self._nearest()
            ),
            ApiKey.LIST_OFFSETS: ListOffsets(replicas),
            ApiKey.METADATA: Metadata(
                replicas, self._forwarding.create_topic, config, self._doubts
            ),
            ApiKey.FIND_COORDINATOR: find_coordinator,
            ApiKey.CREATE_TOPICS: by_controller(
                CreateTopics(replicas, office, config, self.node_id)
            ),
            ApiKey.DELETE_TOPICS: by_controller(DeleteTopics(office, config)),
            ApiKey.INIT_PRODUCER_ID: InitProducerId(ProducerIds(self._store)),
            ApiKey.DESCRIBE_CLUSTER: DescribeCluster(replicas),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpoch(replicas),
            ApiKey.DELETE_RECORDS: DeleteRecords(replicas),
            ApiKey.DESCRIBE_PRODUCERS: DescribeProducers(replicas),
            ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirs(replicas),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitions(replicas),
            ApiKey.CREATE_PARTITIONS: by_controller(CreatePartitions(office)),
            ApiKey.DESCRIBE_CONFIGS: DescribeConfigs(replicas, config, self.node_id),
            ApiKey.ALTER_CONFIGS: by_controller(AlterConfigs(office, incremental=False)),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: by_controller(AlterConfigs(office, incremental=True)),
            ApiKey.ELECT_LEADERS: by_controller(ElectLeaders(office)),
            ApiKey.ALTER_PARTITION: AlterPartition(office),
            ApiKey.BROKER_HEARTBEAT: BrokerHeartbeat(office),
            ApiKey.DESCRIBE_BROKER: DescribeBroker(self._life),
            ApiKey.DESCRIBE_EVENTS: DescribeEvents(replicas),
            ApiKey.REPORT_LOSS: ReportLoss(office),
            ApiKey.DESCRIBE_REPLICAS: DescribeReplicas(replicas, self.node_id),
            ApiKey.SASL_HANDSHAKE: sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: DescribeUserScramCredentials(
                ScramDirectory(self._follower)
            ),
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: by_controller(AlterUserScramCredentials(office)),
        }
        handlers[ApiKey.API_VERSIONS] = ApiVersions(advertised([*handlers, ApiKey.API_VERSIONS]))
        return handlers

    def _life(self) -> BrokerLife:
        return BrokerLife(self.node_id, self._membership.epoch, self._is_stopping)

    def _nearest(self) -> NearestReplica | None:
        if not self.config.replica_selector_class.endswith(RACK_AWARE):
            return None
        return NearestReplica(self.node_id, lambda: self.replicas.image)

    # -- stopping ------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """Stop serving, bring everything to disk and mark each directory as whole.

        Returns whether that worked; where not, the next start checks the logs.
        """
        self._is_stopping = True
        if self.config.controlled_shutdown_enable:
            epoch, image = self._membership.epoch, self.replicas.image
            await hand_over(self.node_id, epoch, image, self.controllership, self._peers)
        # While others could still reach it: a controller that nobody reaches is deposed, and would
        # be elected again at once.
        await self.controllership.stop()
        stopping = [asyncio.create_task(listener.stop()) for listener in self.listeners]
        await asyncio.sleep(0)  # Now no new request starts, and those that wait can be told.
        for partition in self.replicas:
            partition.close()
        if self._copying is not None:
            await self._copying.stop()
        await asyncio.gather(*stopping)
        clean = await self._housekeeping.stop()
        await self._leave()
        for directory in self.directories:
            directory.close(clean=clean)
        clean = all(self._is_marked_clean(directory.path) for directory in self.directories)
        log.info("broker stopped", extra={"node": self.node_id, "clean": clean})
        return clean

    def _is_marked_clean(self, path: str) -> bool:
        try:
            return self._env.disk.exists(f"{path}/{CLEAN_SHUTDOWN}")
        except OSError:
            return False  # The next start will not see it either.

    async def _leave(self) -> None:
        await self._lifelines.stop()
        await self._follower.stop()
        for listener in self.listeners:
            await listener.stop()
        await self._loss_reports.stop()
        await self._forwarding.stop()
        await self.controllership.stop()
        await self._membership.stop()

    def _put_away(self, path: str) -> None:
        self._housekeeping.remove_dir(path, self.config.topic.file_delete_delay_ms / 1000)


def _reachable(host: str) -> str:
    """A wildcard address is no destination: tell clients the machine's own instead."""
    return "localhost" if host in ("0.0.0.0", "::") else host
