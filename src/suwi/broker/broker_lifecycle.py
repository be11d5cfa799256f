"""This broker's place in the cluster: its session with the store, and its registration.

`join` registers it and from then on sees to it that it stays registered: after a lost session with
a new one, after its registration was taken away with another. `on_life` is told each broker epoch,
and UNKNOWN_EPOCH as soon as it is known to be over: then it may lead nothing.
Invariant: the epoch told last is that of a registration which has not been seen to be gone.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from suwi.client.connection import PeerConnection, is_refusal
from suwi.controller.replication_control import Registered
from suwi.env.tasks import STOP_BROKER, Tasks, cancel_and_wait
from suwi.metadata.follower import BROKERS
from suwi.metadata.image import BrokerInfo, Endpoint, decode_broker, encode_broker
from suwi.metadata.store import (
    AlreadyRegistered,
    Closed,
    MetadataStore,
    Registration,
    Session,
    SessionLost,
    Unavailable,
)
from suwi.model.ids import NodeId
from suwi.replica.leader_state import UNKNOWN_EPOCH

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
"""Notices may be late; a look costs little."""
_RETRY_S = 0.2
_PROBE_S = 2.0


class IdInUse(Exception):
    """Another broker has this broker's id, and answers."""


class BrokerLifecycle:
    def __init__(
        self,
        node_id: NodeId,
        store: MetadataStore,
        describe: Callable[[], BrokerInfo],
        was_unclean_shutdown: Callable[[], bool],
        on_life: Callable[[int], None],
        tasks: Tasks,
    ) -> None:
        self.epoch = UNKNOWN_EPOCH
        self._node_id = node_id
        self._key = f"{BROKERS}{node_id}"
        self._store = store
        self._describe = describe
        self._is_suspect = was_unclean_shutdown
        self._on_life = on_life
        self._tasks = tasks
        self._session: Session | None = None
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> int:
        """Register; the broker epoch. Raises IdInUse."""
        self._session = await self._store.open_session()
        self._enter(await self._register(self._session))
        self._task = self._tasks.start(
            self._stay, name="broker registration", on_failure=STOP_BROKER
        )
        return self.epoch

    async def session(self) -> Session:
        """The session that the broker is registered in; waits while there is none."""
        while True:
            await self._joined.wait()
            assert self._session is not None
            if not self._session.lost.is_set():
                return self._session
            self._leave()

    async def resign(self) -> None:
        """Be the controller no more, if the session is."""
        if self._session is not None and not self._session.lost.is_set():
            with contextlib.suppress(Unavailable):
                await self._session.resign()

    async def stop(self) -> None:
        """Leave the cluster."""
        await cancel_and_wait(self._task)
        if self._session is not None:
            with contextlib.suppress(Unavailable):
                await self._session.close()

    # -- staying registered ----------------------------------------------------------------------

    async def _stay(self) -> None:
        changed = asyncio.Event()
        unsubscribe = self._store.subscribe(changed.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await changed.wait()
                changed.clear()
                try:
                    await self._see_to_it()
                except Closed:
                    return
                except Unavailable:
                    await asyncio.sleep(_RETRY_S)
                    changed.set()
                except IdInUse as error:
                    log.error("not registered", extra={"broker": self._node_id, "why": str(error)})
                except SessionLost:
                    changed.set()
        finally:
            unsubscribe()

    async def _see_to_it(self) -> None:
        assert self._session is not None
        if self._session.lost.is_set():
            self._leave()
            log.warning("session lost", extra={"broker": self._node_id})
            self._session = await self._store.open_session()
        elif self.epoch != UNKNOWN_EPOCH and not await self._is_registered():
            self._leave()
            log.warning("registration gone", extra={"broker": self._node_id})
        if self.epoch == UNKNOWN_EPOCH:
            self._enter(await self._register(self._session))

    async def _is_registered(self) -> bool:
        if await self._holds():
            return True
        await self._store.sync()  # It may be too new for a read that lags.
        return await self._holds()

    async def _holds(self) -> bool:
        held = (await self._store.registrations(self._key)).get(self._key)
        return held is not None and held.epoch == self.epoch

    def _enter(self, epoch: int) -> None:
        self.epoch = epoch
        self._joined.set()
        log.info("registered", extra={"broker": self._node_id, "epoch": epoch})
        self._on_life(epoch)

    def _leave(self) -> None:
        if self.epoch != UNKNOWN_EPOCH:
            self.epoch = UNKNOWN_EPOCH
            self._joined.clear()
            self._on_life(UNKNOWN_EPOCH)

    # -- registering -----------------------------------------------------------------------------

    async def _register(self, session: Session) -> int:
        value = encode_registration(self._describe(), was_unclean_shutdown=self._is_suspect())
        while True:
            try:
                return await session.register(self._key, value)
            except AlreadyRegistered as error:
                if await self._is_void(error.registration, session):
                    await self._store.deregister(self._key, error.registration.epoch)
                else:
                    await asyncio.sleep(_RETRY_S)

    async def _is_void(self, held: Registration, session: Session) -> bool:
        """Whether a registration is that of a life which is over. Raises IdInUse."""
        other = decode_registration(self._node_id, held).broker
        if held.session_id == session.id or other.endpoints == self._describe().endpoints:
            return True  # Ours: this process listens at that address.
        for endpoint in other.endpoints:
            answers = await _answers(endpoint)
            if answers:
                raise IdInUse(
                    f"broker id {self._node_id} is in use: a broker with it answers at "
                    f"{endpoint.host}:{endpoint.port}"
                )
            if answers is None:
                return False
        return True


async def _answers(endpoint: Endpoint) -> bool | None:
    """Whether somebody listens there; None where that cannot be told."""
    try:
        async with asyncio.timeout(_PROBE_S):
            connection = await PeerConnection.open(endpoint.host, endpoint.port)
    except OSError as error:  # of which a time-out is one
        return False if is_refusal(error) else None
    connection.abort()
    return True


def encode_registration(broker: BrokerInfo, *, was_unclean_shutdown: bool) -> bytes:
    """The value of a broker's registration."""
    return json.dumps(
        {**json.loads(encode_broker(broker)), "suspect": was_unclean_shutdown}
    ).encode()


def decode_registration(node_id: NodeId, registration: Registration) -> Registered:
    value = json.loads(registration.value)
    broker = decode_broker(node_id, json.dumps({**value, "epoch": registration.epoch}).encode())
    return Registered(broker, value["suspect"])
