"""Controller election: this broker campaigns until it stops, and acts as controller when elected.

A newly elected controller first syncs with the metadata store, lets its image catch up, compares
the registrations with the brokers in the image and writes the differences. Then it becomes active,
and from then on writes registrations and unregistrations as they happen. `active` has the
operations of the active controller, for request handlers.
Invariant: on a broker that is not the active controller `active` raises NotController; every write
of the controller carries its controller epoch (hazard 11).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from suwi.controller.acl_control import AclControl
from suwi.controller.broker_lifecycle import BrokerLifecycle
from suwi.controller.client_quota_control import ClientQuotaControl
from suwi.controller.configuration_control import ConfigurationControl
from suwi.controller.elections import Rules
from suwi.controller.feature_control import FeatureControl
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.reassignment_control import ReassignmentControl
from suwi.controller.registration import decode_registration
from suwi.controller.replica_state_query import QueryReplicaStates
from suwi.controller.replication_control import ElectionCounts, Registered, ReplicationControl
from suwi.controller.scram_control import ScramControl
from suwi.controller.topic_control import TopicControl
from suwi.env import Env
from suwi.env.tasks import RESTART, STOP_BROKER, Tasks, cancel_and_wait, wait_for_event
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig, topic_config_of
from suwi.metadata.image import BrokerInfo, Topic
from suwi.metadata.metadata_follower import BROKERS, MetadataFollower
from suwi.metadata.store import (
    Closed,
    MetadataStore,
    Session,
    SessionLost,
    Unavailable,
    until_available,
)
from suwi.model.errors import BrokerError, NotController
from suwi.model.ids import NodeId

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 1.0
_RETRY_S = 0.1
_PATIENT_ATTEMPTS = 10
"""So often all replicas are asked for their positions; then those that answer are enough where a
topic allows unclean elections."""


class ActiveController(NamedTuple):
    """The operations of one controller, from its election until it resigns or is deposed."""

    epoch: int
    topics: TopicControl
    configs: ConfigurationControl
    scram: ScramControl
    acls: AclControl
    client_quotas: ClientQuotaControl
    features: FeatureControl
    partitions: ReplicationControl
    reassignments: ReassignmentControl


@dataclass(eq=False, repr=False)
class ControllerElection:
    _node_id: NodeId
    _store: MetadataStore
    _follower: MetadataFollower
    _lifecycle: BrokerLifecycle
    _env: Env
    _config: DynamicBrokerConfig
    _query_replica_states: QueryReplicaStates
    _tasks: Tasks
    elections: ElectionCounts = field(default_factory=ElectionCounts)
    is_shutting_down: bool = False
    """Whether this broker has asked to be fenced because it stops."""
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _active: ActiveController | None = None
    _session: Session | None = None
    _is_active: asyncio.Event = field(default_factory=asyncio.Event)
    _brokers: Mapping[NodeId, BrokerInfo] = field(default_factory=dict)
    """As they were when elections after a power loss were last looked at."""
    _may_elect: asyncio.Event = field(default_factory=asyncio.Event)
    """Brokers or the rules of topics have changed since."""
    _task: asyncio.Task[None] | None = None

    # -- operations of the active controller -----------------------------------------------------

    @property
    def active(self) -> ActiveController:
        """Raises NotController if this broker is not the active controller."""
        if self._active is None or self._is_overdue:
            raise NotController(f"broker {self._node_id} is not the controller")
        return self._active

    @property
    def is_active_controller(self) -> bool:
        return self._active is not None and not self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        """Whether another broker may be the controller: the store has been silent for the session
        timeout (hazard Z6)."""
        return self._session is None or self._session.is_overdue

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when this broker becomes the active controller or resigns."""
        self._listeners.append(listener)

    async def wait_until_active(self) -> None:
        """Wait until this broker is the active controller."""
        await self._is_active.wait()

    # -- election --------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._tasks.start(
            self._campaign, name="controller election", on_failure=STOP_BROKER
        )

    async def stop(self) -> None:
        """Resign if this broker is the controller, and stop campaigning."""
        if self._task is not None:
            task, self._task = self._task, None
            await cancel_and_wait(task)
            await self._lifecycle.resign()

    async def _campaign(self) -> None:
        try:
            while True:
                session = await self._lifecycle.session()
                try:
                    controller = await session.campaign(self._node_id)
                except SessionLost:
                    continue
                except Unavailable:
                    await asyncio.sleep(_RETRY_S)
                    continue
                writer = await self._serve(controller.epoch, session)
                await writer.wait_idle()
        except Closed:
            pass

    async def _serve(self, epoch: int, session: Session) -> MetadataWriter:
        """Act as the controller until deposed; returns the writer, which is closed."""
        changed, deposed = asyncio.Event(), asyncio.Event()

        def refused() -> None:
            deposed.set()
            changed.set()

        writer = MetadataWriter(self._store, self._follower, epoch, refused)
        self._session = session
        log.info("elected controller", extra={"broker": self._node_id, "epoch": epoch})
        unsubscribe = self._store.subscribe(changed.set)
        background: list[asyncio.Task[None]] = []
        active_controller = self._new_controller(epoch, writer)
        try:
            await until_available(self._follower.synced)
            last_reason = ""
            while not deposed.is_set() and not session.is_overdue:
                changed.clear()
                try:
                    if not await self._act(active_controller, background):
                        break
                except Closed:
                    raise
                except (Unavailable, BrokerError) as error:
                    if str(error) != last_reason:
                        last_reason = str(error)
                        log.warning(
                            "metadata store unavailable, retrying", extra={"reason": last_reason}
                        )
                    await asyncio.sleep(_RETRY_S)
                    continue
                await wait_for_event(changed, _CHECK_INTERVAL_S)
        finally:
            unsubscribe()
            writer.close()
            self._active = None
            self._is_active.clear()
            self._notify_listeners()
            for task in background:
                task.cancel()
            log.info("resigned as controller", extra={"broker": self._node_id, "epoch": epoch})
        return writer

    async def _act(
        self, active_controller: ActiveController, background: list[asyncio.Task[None]]
    ) -> bool:
        """Write registrations that are new, and begin to serve; whether this broker still is the
        controller. Raises Unavailable, BrokerError."""
        try:
            if not await self._is_still_controller(active_controller.epoch):
                return False
            await self._process_registrations(active_controller)
            self._notice_brokers()
            if self._active is None:
                await self._unfence_itself(active_controller)
                self._activate(active_controller, background)
        except NotController:
            return False
        return True

    def _new_controller(self, epoch: int, writer: MetadataWriter) -> ActiveController:
        follower = self._follower
        partitions = ReplicationControl(
            writer,
            follower,
            self._rules_of,
            self.elections,
            self._query_replica_states,
            self._env.clock,
        )
        return ActiveController(
            epoch,
            TopicControl(writer, follower, self._env.random, self._config.static.topic),
            ConfigurationControl(
                writer, follower, self._config.static, partial(self._reconsider, partitions)
            ),
            ScramControl(writer, follower),
            AclControl(writer, follower),
            ClientQuotaControl(writer, follower),
            FeatureControl(writer, follower),
            partitions,
            ReassignmentControl(writer, follower, partitions),
        )

    def _activate(
        self, active_controller: ActiveController, background: list[asyncio.Task[None]]
    ) -> None:
        self._active = active_controller
        self._is_active.set()
        self._notify_listeners()
        work: dict[str, Callable[[ActiveController], Coroutine[Any, Any, None]]] = {
            "election after power loss": self._elect_awaiting_partitions
        }
        if self._config.static.auto_leader_rebalance_enable:
            work["preferred leader election"] = self._balance_leaders
        for name, run in work.items():
            background.append(
                self._tasks.start(partial(run, active_controller), name=name, on_failure=RESTART)
            )

    def _notify_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    def _rules_of(self, topic: Topic) -> Rules:
        """The topic's configuration for elections, with the current cluster-wide defaults."""
        config = topic_config_of(topic, self._config.cluster_wide.topic)
        return Rules(config.unclean_leader_election_enable, config.min_insync_replicas)

    async def _reconsider(self, partitions: ReplicationControl, topics: Iterable[str]) -> None:
        await partitions.reconsider(topics)
        self._may_elect.set()

    async def _unfence_itself(self, active_controller: ActiveController) -> None:
        """Unfence this broker if the previous controller fenced it by mistake.

        Only the controller unfences brokers, and it does not monitor itself.
        """
        own = self._follower.image.registered_brokers.get(self._node_id)
        if own is not None and own.fenced and not self.is_shutting_down:
            await active_controller.partitions.unfence(self._node_id, self._lifecycle.epoch)

    async def _is_still_controller(self, epoch: int) -> bool:
        for _ in range(2):
            controller = await self._store.current_controller()
            if controller is not None and controller.epoch == epoch:
                return True
            await self._store.sync()  # The read may have been stale.
        return False

    # -- work of the active controller -----------------------------------------------------------

    async def _process_registrations(self, active_controller: ActiveController) -> None:
        """Write registrations and unregistrations that are not yet in the image."""
        registered = await self._registered()
        if not active_controller.partitions.are_registrations_applied(registered):
            await active_controller.partitions.apply_registrations(registered)

    def _notice_brokers(self) -> None:
        """Also of changes whose write was not known to have succeeded, and of unfenced brokers."""
        brokers = self._follower.image.registered_brokers
        if brokers != self._brokers:
            self._brokers = brokers
            self._may_elect.set()

    async def _registered(self) -> Mapping[NodeId, Registered]:
        registrations = await self._store.registrations(BROKERS)
        found = {
            node: decode_registration(node, registration)
            for key, registration in registrations.items()
            for node in [NodeId(int(key.removeprefix(BROKERS)))]
        }
        return dict(sorted(found.items()))

    async def _elect_awaiting_partitions(self, active_controller: ActiveController) -> None:
        """Elect leaders for partitions whose in-sync replicas all had an unclean shutdown.

        Such a partition waits until all those replicas are back and report their log end offsets.
        """
        while True:
            self._may_elect.clear()
            attempts = 0
            try:
                while active_controller.partitions.awaiting_positions():
                    attempts += 1
                    await active_controller.partitions.elect_longest_log(
                        is_last_resort=attempts > _PATIENT_ATTEMPTS
                    )
                    if active_controller.partitions.awaiting_positions():
                        await asyncio.sleep(_CHECK_INTERVAL_S)
            except BrokerError as error:
                log.info("election after power loss deferred", extra={"reason": str(error)})
                await asyncio.sleep(_CHECK_INTERVAL_S)
                continue
            await self._may_elect.wait()

    async def _balance_leaders(self, active_controller: ActiveController) -> None:
        """Elect preferred leaders at regular intervals, where they are in sync."""
        while True:
            await asyncio.sleep(self._config.static.leader_imbalance_check_interval_seconds)
            try:
                moved = await active_controller.partitions.balance()
            except BrokerError as error:
                log.info("preferred leader election failed", extra={"reason": str(error)})
            else:
                if moved:
                    log.info("preferred leaders elected", extra={"partitions": moved})
