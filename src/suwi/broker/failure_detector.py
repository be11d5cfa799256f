"""Fast fail-over: connections that tell of a broker's death long before its session has ended.

The controller holds one to every other broker, every broker one to the controller. When one breaks
and another is refused, nobody listens there any more: the process is gone. Then the controller
fences the broker, and brokers depose the controller; both do no harm if they are wrong. A time-out
says nothing: a broker that is frozen or cut off waits for the end of its session.
`apply_image` is told of each new image, `follow` also when this broker comes into office.
Invariant: only a life that was seen here, by its epoch, is declared over.
"""

import asyncio
import logging

from suwi.broker.controller_election import ControllerElection
from suwi.client.connection import PeerConnection, is_refusal
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.handlers.describe_broker import BrokerIncarnation, decode_incarnation
from suwi.metadata.image import ClusterImage
from suwi.metadata.store import MetadataStore, Unavailable
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.peers import HasImage, Peers
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_CONNECT_S = 5.0
_ANSWER_S = 5.0
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0


class FailureDetector:
    def __init__(
        self,
        node_id: NodeId,
        store: MetadataStore,
        peers: Peers,
        metadata: HasImage,
        controller_election: ControllerElection,
        tasks: Tasks,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._peers = peers
        self._metadata = metadata
        self.tasks = tasks
        self._controller_election = controller_election
        self._lines: dict[NodeId, _PeerMonitor] = {}
        self._seen: dict[NodeId, int] = {}
        """The last life of each broker that answered here."""
        self._fenced: set[NodeId] = set()
        self._deposed: set[NodeId] = set()
        """Declared over once, and not again before they have answered: else brokers that a firewall
        separates would fence and depose each other without end."""
        self._was_in_office = False
        self._is_stopped = False

    def apply_image(self, _old: ClusterImage, _new: ClusterImage) -> None:
        self.follow()

    def follow(self) -> None:
        """Hold on to whom it matters now."""
        if self._is_stopped:
            return
        image = self._metadata.image
        wanted: set[NodeId] = set()
        is_active_controller = self._controller_election.is_active_controller
        is_new, self._was_in_office = (
            is_active_controller and not self._was_in_office,
            is_active_controller,
        )
        if is_active_controller:
            wanted = {node for node in image.registered_brokers if node != self._node_id}
        elif image.controller not in (None, self._node_id):
            wanted = {image.controller} & set(image.registered_brokers)
        for node in [node for node in self._lines if node not in wanted]:
            self._lines.pop(node).stop()
        for node in sorted(wanted):
            line = self._lines.get(node)
            if line is None:
                self._lines[node] = _PeerMonitor(node, self)
            else:
                line.look(image.registered_brokers[node].epoch, again=is_new)

    async def stop(self) -> None:
        self._is_stopped = True
        await cancel_and_wait(*(line.task for line in self._lines.values()))

    # -- for a lifeline --------------------------------------------------------------------------

    async def connect(self, node: NodeId) -> PeerConnection:
        async with asyncio.timeout(_CONNECT_S):
            return await self._peers.connect(node)

    async def answered(self, life: BrokerIncarnation) -> None:
        """A broker has said which life it lives."""
        if life.epoch == UNKNOWN_EPOCH:
            return
        self._seen[life.node] = life.epoch
        self._fenced.discard(life.node)
        self._deposed.discard(life.node)
        known = self._metadata.image.registered_brokers.get(life.node)
        if known is None or known.epoch != life.epoch or not known.fenced or life.stopping:
            return
        if self._controller_election.is_active_controller:
            await self._controller_election.partitions.unfence(life.node, life.epoch)

    async def controller_epoch(self, node: NodeId) -> int | None:
        """The epoch of the controller, if this broker is it."""
        controller = await self._store.current_controller()
        return controller.epoch if controller and controller.node_id == node else None

    async def refused(self, node: NodeId, controller_epoch: int | None) -> None:
        """Nobody listens where a broker was: it is dead, if it ever lived here."""
        known = self._metadata.image.registered_brokers.get(node)
        if known is None or self._seen.get(node) != known.epoch:
            return
        if self._controller_election.is_active_controller:
            if not known.fenced and node not in self._fenced:
                log.info("broker gone", extra={"broker": node, "epoch": known.epoch})
                await self._controller_election.partitions.fence(node, known.epoch)
                self._fenced.add(node)
        elif controller_epoch is not None and node not in self._deposed:
            log.info("controller gone", extra={"broker": node, "epoch": controller_epoch})
            await self._store.depose(controller_epoch)
            self._deposed.add(node)


class _PeerMonitor:
    """One broker that is held on to."""

    def __init__(self, node: NodeId, owner: FailureDetector) -> None:
        self._node = node
        self._owner = owner
        self._epoch: int | None = None
        self._woken = asyncio.Event()
        self.task = owner.tasks.start(self._run, name="failure detector", on_failure=RESTART)

    def look(self, epoch: int, *, again: bool) -> None:
        """The image shows the broker in this life. `again`: what was refused before counts now."""
        if again or epoch != self._epoch:
            self._epoch = epoch
            self._woken.set()

    def stop(self) -> None:
        self.task.cancel()

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                if await self._hold():
                    pause_s = _PAUSE_S_MIN
                    continue  # It broke: at once again.
            except (OSError, ValueError, BrokerError, Unavailable) as error:
                log.debug("no lifeline", extra={"broker": self._node, "reason": str(error)})
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _hold(self) -> bool:
        """Connect and hold on; True when the connection was there and broke."""
        # Read first: who is controller now, and then does not listen, is so no longer.
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
                await self._owner.answered(await _ask(connection))
                await self._until_something_happens(connection)
            return True
        finally:
            connection.abort()

    async def _until_something_happens(self, connection: PeerConnection) -> None:
        """The connection breaks, or the broker begins another life."""
        known = self._epoch
        lost = asyncio.ensure_future(connection.lost())  # owner: this function
        try:
            while connection.is_open and self._epoch == known:
                woken = asyncio.ensure_future(self._woken.wait())  # owner: this function
                await asyncio.wait((lost, woken), return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self._woken.clear()
        finally:
            lost.cancel()

    async def _pause(self, pause_s: float) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            pass


async def _ask(connection: PeerConnection) -> BrokerIncarnation:
    async with asyncio.timeout(_ANSWER_S):
        return decode_incarnation(bytes(await connection.send(ApiKey.DESCRIBE_BROKER, 0, [b"{}"])))
