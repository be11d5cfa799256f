"""One broker: creates its components, starts them in order and stops them.

`start` returns when the broker can serve clients, `stop` when all data is on disk. `wait_failed`
returns when the broker has stopped by itself because a broker-wide task failed.
Invariant: a component refers only to components created before it; notifications in the other
direction go through subscriptions.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from suwi.broker.kafka_apis import KafkaApis
from suwi.broker.listener_security import ListenerSecurity, ScramUsers
from suwi.broker.peer_security import (
    check_peers_can_log_in,
    connect_to_peers,
    find_inter_broker_listener,
    peer_log_in,
    prove_to_peers,
)
from suwi.broker.socket_server import SocketServer
from suwi.controller.broker_lifecycle import BrokerLifecycle
from suwi.controller.cluster_identity import cluster_secrets, identify
from suwi.controller.controlled_shutdown import controlled_shutdown
from suwi.controller.controller_election import ControllerElection
from suwi.controller.failure_detector import FailureDetector
from suwi.controller.registration import BrokerIncarnation, Origin, OwnRegistration
from suwi.controller.replica_state_query import query_replica_states
from suwi.env import Env
from suwi.env.problems import Problems, because
from suwi.env.slices import in_slices
from suwi.env.tasks import TaskFailure, Tasks
from suwi.group.group_coordinator import GroupCoordinator
from suwi.handlers.audit_log import AuditLog
from suwi.handlers.forwarding import Forwarding
from suwi.handlers.peer_handshake import PeerHandshake
from suwi.log.checkpoints import Identity
from suwi.log.file_cache import FileCache, raise_open_file_limit
from suwi.log.log_directories import LogDirectories
from suwi.log.names import CLEAN_SHUTDOWN
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.metadata.image import PEER_SECRET, SCRAM_DECOYS, BrokerInfo, ClusterImage
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.metadata_position import MetadataPosition
from suwi.metadata.partition_history import PartitionHistory
from suwi.metadata.store import MetadataStore, until_available
from suwi.model.broker_config import BrokerConfig, rack_of
from suwi.model.features import SUPPORTED
from suwi.model.ids import NodeId
from suwi.model.listener_config import parse_listeners
from suwi.net.client_quota_manager import ClientQuotaManager
from suwi.net.dispatch import Dispatcher
from suwi.net.listener import Listener
from suwi.net.stats import Measured, NetStats
from suwi.replica.alter_partition_manager import AlterPartitionManager
from suwi.replica.log_loader import LogLoader
from suwi.replica.log_manager import DeferredDeletion, LogManager
from suwi.replica.loss import LossReports
from suwi.replica.peers import Peers, SuspectedBrokers
from suwi.replica.replica_fetcher import ReplicaFetcher
from suwi.replica.replica_fetcher_manager import ReplicaFetcherManager
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.authorizer import Authorizer
from suwi.security.peer_proof import PeerProver
from suwi.security.scram import MECHANISMS, Decoys
from suwi.transaction.marker_appender import TxnMarkers
from suwi.transaction.transaction_coordinator import TransactionCoordinator
from suwi.transaction.transaction_verifier import TransactionVerifier

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Shares of the open file limit. The rest is for connections that need a second descriptor and for
# the metadata store. Without the split, connections could use up all descriptors, and a log that
# cannot be opened goes offline.
_OPEN_FILES_FOR_LOGS = 0.5
_OPEN_FILES_FOR_CONNECTIONS = 0.4
_CLOSED_IN_A_SLICE = 500


async def _in_thread(job: Callable[[], _T]) -> _T:
    """What takes long with many partitions. It is over when this returns, also if cancelled."""
    result = asyncio.get_running_loop().run_in_executor(None, job)
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        await asyncio.wait([result])
        raise


class BrokerFailed(Exception):
    """A broker-wide task failed while the broker was starting."""

    def __init__(self, failure: TaskFailure) -> None:
        super().__init__(str(failure))


class Broker:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        store: MetadataStore,
        *,
        stats: NetStats | None = None,
        adopts: bool = False,
        brokers_in_process: int = 1,
        start_together: Collection[NodeId] = (),
    ) -> None:
        """`stats`: where requests are counted for metrics. `adopts`: create topics for data that
        the metadata lacks. `start_together`: the brokers that start together with this one; it
        serves no clients until all are registered."""
        self.config = config
        self.node_id = NodeId(config.node_id)
        self.cluster_id = ""
        self.problems = Problems(env.clock)
        self.partition_history = PartitionHistory(env.clock)
        self.tasks = Tasks(self._on_fatal, self.problems)
        self.failure: TaskFailure | None = None
        """The reason why the broker stopped by itself."""
        self._env = env
        self._store = store
        self._stats = stats
        self._adopts = adopts
        self._start_together = start_together
        self._brokers_in_process = brokers_in_process
        self._origin = Origin(process=env.random.uuid().hex)
        self._specs = parse_listeners(config)
        self._inter_broker_listener = find_inter_broker_listener(config, self._specs)
        self._dynamic = DynamicBrokerConfig(config)
        self._follower = MetadataFollower(store, self.tasks)
        self._authorizer = self._make_authorizer()
        self._quotas = ClientQuotaManager()
        self._audit = self._make_audit_log()
        open_files_max = raise_open_file_limit() // brokers_in_process
        self._make_peers()
        self._make_replicas(FileCache(env.disk, int(open_files_max * _OPEN_FILES_FOR_LOGS)))
        self._make_controller_election()
        self._make_socket_server(int(open_files_max * _OPEN_FILES_FOR_CONNECTIONS))
        self._make_coordinators()
        if brokers_in_process > 1 or store.is_shared:
            check_peers_can_log_in(config, self._inter_broker_listener, env.disk)
        self._failed = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        self._stopping: asyncio.Task[bool] | None = None
        self._subscribe()

    def _make_authorizer(self) -> Authorizer | None:
        if not self.config.authorizer_class_name:
            return None
        return Authorizer(
            self._follower.image.acls,
            [user.strip() for user in self.config.super_users.split(";")],
            allows_without_rules=self.config.allow_everyone_if_no_acl_found,
        )

    def _make_audit_log(self) -> AuditLog | None:
        if not self.config.audit_log_dir:
            return None
        path = f"{self.config.audit_log_dir}/audit-{self.node_id}"
        audit = AuditLog(self._env, path, self.problems)
        if self._authorizer is not None:
            self._authorizer.on_refusal = audit.refused
        return audit

    def _make_peers(self) -> None:
        self._prover = PeerProver(self.node_id, self._env.random)
        self._suspected_brokers = SuspectedBrokers(self._follower)
        self.peers = Peers(
            self._follower,
            self._inter_broker_listener.name,
            connect_to_peers(self.config, self._inter_broker_listener, self._env),
            prove_to_peers(self._inter_broker_listener, self._prover),
            self._suspected_brokers,
        )
        self._loss_reports = LossReports(self.node_id, self.peers, self.tasks)

    def _make_replicas(self, files: FileCache) -> None:
        env, tasks = self._env, self.tasks
        self.directories = LogDirectories(env, self.config.log_dirs, files, self.problems)
        self._metadata_position = MetadataPosition(env.disk, self.directories.first_usable)
        self._deletion = DeferredDeletion(env.disk, tasks)
        self.replicas = ReplicaManager(
            self.node_id,
            self.directories,
            env.clock,
            self._dynamic,
            tasks,
            self._mark_for_deletion,
            self._loss_reports.add,
        )
        self.log_manager = LogManager(
            env, self._dynamic, self.directories, self.replicas, self._deletion, self._store, tasks
        )

    def _make_controller_election(self) -> None:
        store, follower, tasks = self._store, self._follower, self.tasks
        self._lifecycle = BrokerLifecycle(
            self.node_id,
            store,
            self._registration,
            connect_to_peers(self.config, self._inter_broker_listener, self._env),
            self.replicas.set_broker_epoch,
            tasks,
        )
        self.controller_election = ControllerElection(
            self.node_id,
            store,
            follower,
            self._lifecycle,
            self._env,
            self._dynamic,
            partial(query_replica_states, self.peers),
            tasks,
        )
        self._failure_detector = FailureDetector(
            self.node_id, store, self.peers, follower, self.controller_election, tasks
        )
        self._forwarding = Forwarding(
            self.controller_election, self.peers, follower, self._quotas, self._audit
        )

    def _make_socket_server(self, descriptors_max: int) -> None:
        config, problems = self.config, self.problems
        self._scram_users = ScramUsers(self._follower)
        peer = peer_log_in(config, self._inter_broker_listener, self._env.disk)
        security = [
            ListenerSecurity.of(
                spec,
                config,
                self._env,
                self._scram_users,
                problems,
                peer if spec is self._inter_broker_listener else None,
            )
            for spec in self._specs
        ]
        self._token_keys = [each.token_keys for each in security if each.token_keys is not None]
        self._brokers_user = None
        if peer is not None and peer.mechanism in MECHANISMS:
            self._brokers_user = peer.principal.name
        self._socket_server = SocketServer(
            config,
            self._specs,
            security,
            descriptors_max,
            problems,
            self._quotas,
            self._inter_broker_listener,
            self._audit.log_in_failed if self._audit is not None else lambda _: None,
        )

    def _make_coordinators(self) -> None:
        brokers_max = None if self._store.is_shared else self._brokers_in_process
        self.groups = GroupCoordinator(
            self.config, self._env, self.tasks, lambda: self.replicas.image, brokers_max=brokers_max
        )
        self.replicas.subscribe(self.groups.runtime)
        self.txn_markers = TxnMarkers(
            self.replicas, self.groups.runtime, self._env.clock, lambda: self.transactions.search
        )
        self.transactions = TransactionCoordinator(
            self.config,
            self._env,
            self.tasks,
            lambda: self.replicas.image,
            self._follower,
            self.peers,
            self.txn_markers.append_all,
            brokers_max=brokers_max,
        )
        self.replicas.subscribe(self.transactions.runtime)
        self._verifier = TransactionVerifier(
            self.node_id,
            lambda: self.replicas.image,
            self.transactions.runtime,
            self.peers,
            lambda: self._dynamic.current.transaction_partition_verification_enable,
            self.tasks,
        )

    def _subscribe(self) -> None:
        # The dynamic configuration comes first: the other subscribers read it.
        self._follower.subscribe(self._dynamic.apply_image)
        self._follower.subscribe(self._apply_limits)
        self._follower.subscribe(self.replicas.apply_image)
        self._follower.subscribe(self.partition_history.apply_image)
        self._follower.subscribe(self.groups.apply_image)
        self._follower.subscribe(self.transactions.apply_image)
        self._follower.subscribe(self._failure_detector.apply_image)
        self._follower.subscribe(self._serve_clients_if_ready)
        if self._store.is_shared:
            self._follower.subscribe(self._metadata_position.apply_image)
        self.controller_election.subscribe(self._failure_detector.update)

    @property
    def listeners(self) -> list[Listener]:
        return self._socket_server.listeners

    def _registration(self) -> OwnRegistration:
        rack = rack_of(self.config.broker_rack, self.node_id)
        endpoints = tuple(self._socket_server.endpoints)
        broker = BrokerInfo(self.node_id, endpoints, rack or None, features=SUPPORTED)
        return OwnRegistration(broker, self.directories.lost_power, self._origin)

    # -- starting ------------------------------------------------------------------------------

    async def start(self, joining: asyncio.Barrier | None = None) -> None:
        """`joining`: where brokers that start together wait until all of them are registered.

        Raises DirectoryInUse, ForeignDirectory, UnsupportedFeature, IdInUse, StoreRolledBack,
        OSError, BrokerFailed."""
        self._starting = asyncio.current_task()
        try:
            await _in_thread(self.directories.open)
            await self._start(joining)
            self._starting = None
            if self.failure is not None:
                raise BrokerFailed(self.failure)
        except BaseException as error:
            self._starting = None
            # If no log was opened, a directory that was cleanly shut down before still is.
            untouched = not any(partition.is_open for partition in self.replicas)
            await self._stop_components()
            for directory in self.directories:
                directory.close(clean=untouched and directory.was_clean)
            if self.failure is not None and isinstance(error, asyncio.CancelledError):
                raise BrokerFailed(self.failure) from self.failure.error
            raise

    async def _start(self, joining: asyncio.Barrier | None) -> None:
        identity = await until_available(self._identify)
        await until_available(partial(self._load_secrets, identity.cluster_id))
        await until_available(self._follower.start)
        # The image must include every leader epoch under which this broker has written records.
        await until_available(self._follower.synced)
        self._follower.image.features.check_supported()
        if self._store.is_shared:
            self._metadata_position.check(self._follower.image.sequence)
        await LogLoader(
            self.node_id, self.directories, self.replicas, self._mark_for_deletion, self._adopts
        ).load()
        for directory in self.directories.usable():
            directory.begin()
        if self._audit is not None:
            await self._audit.start(self.tasks)
        await asyncio.gather(*(keys.start(self.tasks) for keys in self._token_keys))
        dispatcher = Dispatcher(self._apis().handlers(), self._authorizer, self._quotas)
        await self._socket_server.start(
            Measured(dispatcher, self._stats) if self._stats else dispatcher
        )
        self.replicas.start_replication(
            ReplicaFetcherManager(self._make_fetcher),
            AlterPartitionManager(self.node_id, self.peers, self.replicas, self.tasks),
        )
        await self._lifecycle.join()
        if joining is not None:
            # A controller elected before would remove the others from every ISR.
            with contextlib.suppress(asyncio.BrokenBarrierError):
                await joining.wait()
        self.controller_election.start()
        await self._follower.registered(self.node_id, lambda: self._lifecycle.epoch)
        self.directories.clear_power_loss()
        if self._adopts:
            await self._adopt()
            self._adopts = False
        self._serve_clients_if_ready(self._follower.image, self._follower.image)
        self.log_manager.start()
        for directory in self.directories.usable():
            for path in await _in_thread(directory.leftovers):
                self._deletion.delete_dir(path, 0)
        self.cluster_id = identity.cluster_id

    def _make_fetcher(self, leader: NodeId) -> ReplicaFetcher:
        peers, config, replicas = self.peers, self.config, self.replicas
        return ReplicaFetcher(leader, self.node_id, peers, config, replicas, self.tasks)

    async def _identify(self) -> Identity:
        """Raises ForeignDirectory, Unavailable."""
        directories = self.directories
        identity = await identify(self.node_id, directories, self._store, self._env.random)
        ids, boot_id = directories.ids(), self._env.disk.boot_id()
        timeout_ms = self.config.zookeeper_session_timeout_ms
        self._origin = Origin(ids, boot_id, timeout_ms, self._origin.process)
        return identity

    async def _load_secrets(self, cluster_id: str) -> None:
        decoys, peer_secret = await cluster_secrets(
            self._store, self._env.random, SCRAM_DECOYS, PEER_SECRET
        )
        self._scram_users.decoys = Decoys(decoys)
        self._prover.learn(peer_secret, cluster_id)

    def _serve_clients_if_ready(self, _old: ClusterImage, image: ClusterImage) -> None:
        """Accept client requests once the image has this broker, those that start with it, a
        controller, and the topics to adopt."""
        own = image.unfenced_brokers.get(self.node_id)
        if own is None or own.epoch != self._lifecycle.epoch or image.controller is None:
            return
        if self._adopts:
            return
        if all(node in image.unfenced_brokers for node in self._start_together):
            self._socket_server.enable_request_processing()

    def _apply_limits(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.broker_configs != old.broker_configs:
            self._socket_server.apply_config(self._dynamic.current)
        self._quotas.apply(new.client_quotas)
        if self._authorizer is not None:
            self._authorizer.apply(new.acls)

    async def _adopt(self) -> None:
        from suwi.broker.kafka_adoption import adopt  # Rarely used; keeps start-up fast.

        await self.controller_election.wait_until_active()
        known, topics = self.replicas.image.topics, self.controller_election.active.topics
        defaults = self.config.topic
        await adopt(self.directories, self._store, known, topics, self.node_id, defaults)

    def _apis(self) -> KafkaApis:
        proof_listener = (
            None if self._inter_broker_listener.uses_sasl else self._inter_broker_listener.name
        )
        return KafkaApis(
            self._env,
            self.config,
            self._store,
            self._follower,
            self.replicas,
            self.controller_election,
            self._forwarding,
            self._suspected_brokers,
            self.groups,
            self.transactions,
            self.txn_markers,
            self._verifier,
            PeerHandshake(self._prover, proof_listener),
            self._incarnation,
            lambda: self._lifecycle.session_state,
            self.problems,
            self.partition_history,
            self._authorizer,
            self._audit,
            self._quotas,
            self._brokers_user,
        )

    def _incarnation(self) -> BrokerIncarnation:
        origin, is_stopping = self._origin, self._stopping is not None
        directories, epoch = origin.directory_ids, self._lifecycle.epoch
        return BrokerIncarnation(self.node_id, is_stopping, directories, epoch, origin.process)

    # -- stopping ------------------------------------------------------------------------------

    def _on_fatal(self, failure: TaskFailure) -> None:
        """Stop the broker: to be replaced by others is better than to work only in part."""
        if self.failure is not None:
            return
        self.failure = failure
        log.critical("broker stopping after a failure", extra=because(failure, broker=self.node_id))
        if self._starting is not None:
            self._starting.cancel()
        else:
            self._begin_stop()

    async def wait_failed(self) -> TaskFailure:
        """Wait until the broker has failed and stopped by itself; otherwise never returns."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def stop(self, together_with: Collection[NodeId] = ()) -> bool:
        """Stop serving, flush all logs and mark each log directory as cleanly shut down.

        `together_with` are brokers that stop at the same time: no leader moves to them.
        Returns whether that succeeded; if not, the next start recovers the logs.
        """
        return await asyncio.shield(self._begin_stop(together_with))

    def _begin_stop(self, together_with: Collection[NodeId] = ()) -> "asyncio.Task[bool]":
        if self._stopping is None:
            loop = asyncio.get_running_loop()
            self._stopping = loop.create_task(self._stop(together_with))  # owner: `_stopped`
            self._stopping.add_done_callback(self._stopped)
        return self._stopping

    def _stopped(self, stopping: "asyncio.Task[bool]") -> None:
        if self.failure is not None:
            error = None if stopping.cancelled() else stopping.exception()
            if error is not None:
                log.error("unclean shutdown", exc_info=error)
            self._failed.set()

    async def _stop(self, together_with: Collection[NodeId]) -> bool:
        if self.config.controlled_shutdown_enable:
            leaving = {self.node_id, *together_with}
            epoch, image = self._lifecycle.epoch, self.replicas.image
            election, peers = self.controller_election, self.peers
            await controlled_shutdown(self.node_id, leaving, epoch, image, election, peers)
        # Resign while the listeners are still open: other brokers depose a controller whose port
        # is closed, and this broker would win the next election at once.
        await self.controller_election.stop()
        stopping = [
            asyncio.create_task(listener.stop())  # owner: this function
            for listener in self.listeners
        ]
        # From here on no new request starts, so delayed requests can be completed with an error.
        await asyncio.sleep(0)
        self.groups.runtime.stop()
        await self._verifier.stop()
        await self.transactions.stop()
        async for partition in in_slices(list(self.replicas), _CLOSED_IN_A_SLICE):
            partition.close()
        await self.replicas.stop_replication()
        await asyncio.gather(*stopping)
        clean = await self.log_manager.stop()
        await self._stop_components()
        for directory in self.directories:
            directory.close(clean=clean)
        clean = all(self._is_marked_clean(directory.path) for directory in self.directories)
        log.info("broker stopped", extra={"broker": self.node_id, "clean": clean})
        return clean

    def _is_marked_clean(self, path: str) -> bool:
        try:
            return self._env.disk.exists(f"{path}/{CLEAN_SHUTDOWN}")
        except OSError:
            return False  # The next start would not find the file either.

    async def _stop_components(self) -> None:
        self.groups.runtime.stop()
        await self._verifier.stop()
        await self.transactions.stop()
        await self._failure_detector.stop()
        await self._follower.stop()
        self._metadata_position.write()
        for listener in self.listeners:
            await listener.stop()
        for keys in self._token_keys:
            await keys.stop()
        if self._audit is not None:
            await self._audit.stop()
        await self._loss_reports.stop()
        await self._forwarding.stop()
        await self.controller_election.stop()
        await self._lifecycle.stop()
        # Last: until here images and the registration may change roles.
        await self.replicas.stop()

    def _mark_for_deletion(self, path: str) -> None:
        self._deletion.delete_dir(path, self.config.topic.file_delete_delay_ms / 1000)
