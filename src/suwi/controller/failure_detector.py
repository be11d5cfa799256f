"""Fast failover: detects that a broker's process has ended before its session expires.

The controller keeps a connection to every other broker, and every broker keeps one to the
controller. If it breaks and a new connection is refused, no process listens there any more. Then
the controller fences the broker, or the brokers depose the controller; both are harmless if the
process is in fact running. A timeout proves nothing: a broker that is frozen or partitioned away
fails over when its session expires.
`apply_image` is called with each new image, `update` also when the active controller changes.
Invariant: a broker is fenced or deposed only in an incarnation (broker epoch) that has answered
this broker before.
"""

import asyncio
import logging
import math
from dataclasses import dataclass, field

from suwi.client.connection import PeerConnection, is_refusal
from suwi.controller.controller_election import ControllerElection
from suwi.controller.registration import BrokerIncarnation, decode_incarnation
from suwi.env.problems import because
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait, wait_for_event
from suwi.metadata.image import BrokerInfo, ClusterImage
from suwi.metadata.store import MetadataStore, Unavailable
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.peers import HasImage, Peers
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_CONNECT_S = 5.0
_RESPONSE_S = 5.0
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_FENCED_CHECK_S = 5.0
"""A fenced broker that could not be unfenced is asked again after this time."""
_FENCED_S_MIN = 10.0
"""Hazard Z18: a firewall that refuses connections now and then costs one election, not many."""


@dataclass(eq=False)
class FailureDetector:
    _node_id: NodeId
    _store: MetadataStore
    _peers: Peers
    _metadata: HasImage
    _controller_election: ControllerElection
    tasks: Tasks
    _monitors: "dict[NodeId, _PeerMonitor]" = field(default_factory=dict)
    _seen: dict[NodeId, int] = field(default_factory=dict)
    """Broker epoch of each broker's last answer to this one."""
    _fenced: set[NodeId] = field(default_factory=set)
    _fenced_s: dict[NodeId, float] = field(default_factory=dict)
    """When this broker last fenced each broker."""
    _deposed: set[NodeId] = field(default_factory=set)
    """Fenced or deposed once, and not again before they have answered: otherwise brokers
    separated by a firewall that refuses connections would fence and depose each other for
    ever."""
    _was_active: bool = False
    _is_stopped: bool = False

    def apply_image(self, _old: ClusterImage, _new: ClusterImage) -> None:
        self.update()

    def update(self) -> None:
        """Start and stop monitors so that exactly the brokers that matter now are monitored."""
        if self._is_stopped:
            return
        image = self._metadata.image
        wanted: set[NodeId] = set()
        is_active_controller = self._controller_election.is_active_controller
        became_active = is_active_controller and not self._was_active
        self._was_active = is_active_controller
        if is_active_controller:
            wanted = {node for node in image.registered_brokers if node != self._node_id}
        elif image.controller not in (None, self._node_id):
            wanted = {image.controller} & set(image.registered_brokers)
        for node in [node for node in self._monitors if node not in wanted]:
            self._monitors.pop(node).stop()
        for node in sorted(wanted):
            monitor = self._monitors.get(node)
            if monitor is None:
                self._monitors[node] = _PeerMonitor(node, self)
            else:
                monitor.observe(image.registered_brokers[node], again=became_active)

    async def stop(self) -> None:
        self._is_stopped = True
        await cancel_and_wait(*(monitor.task for monitor in self._monitors.values()))

    # -- called by the monitors ------------------------------------------------------------------

    async def connect(self, node: NodeId) -> PeerConnection:
        async with asyncio.timeout(_CONNECT_S):
            return await self._peers.connect(node)

    async def answered(self, incarnation: BrokerIncarnation) -> float:
        """A broker has reported its broker epoch: unfence it. Returns how long to wait before the
        next try, if it was fenced a short time ago."""
        if incarnation.epoch == UNKNOWN_EPOCH:
            return 0
        self._seen[incarnation.node] = incarnation.epoch
        self._fenced.discard(incarnation.node)
        self._deposed.discard(incarnation.node)
        known = self._metadata.image.registered_brokers.get(incarnation.node)
        if (
            known is None
            or known.epoch != incarnation.epoch
            or not known.fenced
            or incarnation.stopping
            or not self._controller_election.is_active_controller
        ):
            return 0
        fenced_s = self._fenced_s.get(incarnation.node, -math.inf)
        wait_s = fenced_s + _FENCED_S_MIN - asyncio.get_running_loop().time()
        if wait_s <= 0:
            await self._controller_election.active.partitions.unfence(
                incarnation.node, incarnation.epoch
            )
        return max(0, wait_s)

    async def controller_epoch(self, node: NodeId) -> int | None:
        """The controller epoch, if `node` is the controller."""
        controller = await self._store.current_controller()
        return controller.epoch if controller and controller.node_id == node else None

    async def refused(self, node: NodeId, controller_epoch: int | None) -> None:
        """The broker's port refused a connection: its process has ended, if it answered before."""
        known = self._metadata.image.registered_brokers.get(node)
        if known is None or self._seen.get(node) != known.epoch:
            return
        if self._controller_election.is_active_controller:
            if not known.fenced and node not in self._fenced:
                log.info("broker failed, fencing", extra={"broker": node, "epoch": known.epoch})
                # Before the write, which may be applied although it times out.
                self._fenced_s[node] = asyncio.get_running_loop().time()
                await self._controller_election.active.partitions.fence(node, known.epoch)
                self._fenced.add(node)
        elif controller_epoch is not None and node not in self._deposed:
            log.info(
                "controller failed, deposing", extra={"broker": node, "epoch": controller_epoch}
            )
            await self._store.depose(controller_epoch)
            self._deposed.add(node)


class _PeerMonitor:
    """Keeps a connection to one broker."""

    def __init__(self, node: NodeId, owner: FailureDetector) -> None:
        self._node = node
        self._owner = owner
        self._observed: tuple[int, bool] | None = None
        """Broker epoch and fencing in the image."""
        self._woken = asyncio.Event()
        self.task = owner.tasks.start(self._run, name="failure detector", on_failure=RESTART)

    def observe(self, broker: BrokerInfo, *, again: bool) -> None:
        """The image has this registration. `again`: reconnect at once even if it is unchanged, so
        that this broker, now the active controller, acts on a connection refused before."""
        observed = (broker.epoch, broker.fenced)
        if again or observed != self._observed:
            self._observed = observed
            self._woken.set()

    def stop(self) -> None:
        self.task.cancel()

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                if await self._monitor():
                    pause_s = _PAUSE_S_MIN
                    continue  # The connection broke: reconnect at once.
            except (OSError, ValueError, BrokerError, Unavailable) as error:
                log.debug("broker cannot be monitored", extra=because(error, broker=self._node))
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _monitor(self) -> bool:
        """Connect and wait; returns True if the connection was established and then broke."""
        # Read the controller epoch before connecting: if the connection is refused, it is the
        # controller with this epoch whose process has ended, and not a later one.
        controller_epoch = await self._owner.controller_epoch(self._node)
        try:
            connection = await self._owner.connect(self._node)
        except OSError as error:
            if is_refusal(error):
                await self._owner.refused(self._node, controller_epoch)
            raise
        try:
            while connection.is_open:
                self._woken.clear()
                known = self._observed
                wait_s = await self._owner.answered(await _describe(connection))
                if wait_s:
                    await self._pause(wait_s)
                else:
                    await self._wait_for_change(connection, known)
            return True
        finally:
            connection.abort()

    async def _wait_for_change(
        self, connection: PeerConnection, known: tuple[int, bool] | None
    ) -> None:
        """Return when the connection breaks or the image has another epoch or fencing of the broker
        than the `known` ones, perhaps since before it answered; while it is fenced, also after some
        seconds."""
        timeout_s = _FENCED_CHECK_S if known is not None and known[1] else None
        lost = asyncio.ensure_future(connection.lost())  # owner: this function
        try:
            while connection.is_open and self._observed == known:
                woken = asyncio.ensure_future(self._woken.wait())  # owner: this function
                try:
                    done, _ = await asyncio.wait(
                        (lost, woken), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    woken.cancel()
                if not done:
                    return
                self._woken.clear()
        finally:
            lost.cancel()

    async def _pause(self, pause_s: float) -> None:
        self._woken.clear()
        await wait_for_event(self._woken, pause_s)


async def _describe(connection: PeerConnection) -> BrokerIncarnation:
    async with asyncio.timeout(_RESPONSE_S):
        return decode_incarnation(bytes(await connection.send(ApiKey.DESCRIBE_BROKER, 0, [b"{}"])))
