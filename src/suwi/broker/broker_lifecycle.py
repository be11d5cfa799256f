"""The broker's session with the metadata store, and its registration.

`join` registers the broker and keeps it registered: in a new session after the session was lost,
and again in the same session after the registration was removed. `on_epoch_change` is called with
each new broker epoch, and with UNKNOWN_EPOCH as soon as the registration is known to have ended;
from then on the broker must not lead any partition.
Invariant: the epoch reported last belongs to a registration that is not known to have ended.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from suwi.client.connection import PeerConnection, is_refusal
from suwi.controller.replication_control import Registered
from suwi.env.tasks import STOP_BROKER, Tasks, cancel_and_wait
from suwi.metadata.image import BrokerInfo, Endpoint, decode_broker, encode_broker
from suwi.metadata.metadata_follower import BROKERS
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

_CHECK_INTERVAL_S = 1.0
"""Notifications of the store may be late, and a check is cheap."""
_RETRY_S = 0.2
_PROBE_S = 2.0


class IdInUse(Exception):
    """Another running broker is registered with this broker's id."""


class BrokerLifecycle:
    def __init__(
        self,
        node_id: NodeId,
        store: MetadataStore,
        describe: Callable[[], BrokerInfo],
        was_unclean_shutdown: Callable[[], bool],
        on_epoch_change: Callable[[int], None],
        tasks: Tasks,
    ) -> None:
        self.epoch = UNKNOWN_EPOCH
        self._node_id = node_id
        self._key = f"{BROKERS}{node_id}"
        self._store = store
        self._describe = describe
        self._was_unclean_shutdown = was_unclean_shutdown
        self._on_epoch_change = on_epoch_change
        self._tasks = tasks
        self._session: Session | None = None
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> int:
        """Register the broker; returns the broker epoch. Raises IdInUse."""
        self._session = await self._store.open_session()
        self._set_epoch(await self._register(self._session))
        self._task = self._tasks.start(
            self._keep_registered, name="broker registration", on_failure=STOP_BROKER
        )
        return self.epoch

    @property
    def session_state(self) -> str:
        """A `SessionState`'s value, or `none` before there is a session."""
        return "none" if self._session is None else self._session.state.value

    async def session(self) -> Session:
        """The session in which the broker is registered; waits until there is one."""
        while True:
            await self._joined.wait()
            assert self._session is not None
            if not self._session.lost.is_set():
                return self._session
            self._clear_epoch()

    async def resign(self) -> None:
        """Resign as controller, if this session is the controller's."""
        if self._session is not None and not self._session.lost.is_set():
            with contextlib.suppress(Unavailable):
                await self._session.resign()

    async def stop(self) -> None:
        """Close the session, which removes the registration."""
        await cancel_and_wait(self._task)
        if self._session is not None:
            with contextlib.suppress(Unavailable):
                await self._session.close()

    # -- staying registered ----------------------------------------------------------------------

    async def _keep_registered(self) -> None:
        changed = asyncio.Event()
        unsubscribe = self._store.subscribe(changed.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_INTERVAL_S):
                        await changed.wait()
                changed.clear()
                try:
                    await self._check_registration()
                except Closed:
                    return
                except Unavailable:
                    await asyncio.sleep(_RETRY_S)
                    changed.set()
                except IdInUse as error:
                    log.error(
                        "broker not registered",
                        extra={"broker": self._node_id, "reason": str(error)},
                    )
                except SessionLost:
                    changed.set()
        finally:
            unsubscribe()

    async def _check_registration(self) -> None:
        assert self._session is not None
        if self._session.lost.is_set():
            self._clear_epoch()
            log.warning("metadata session lost", extra={"broker": self._node_id})
            self._session = await self._store.open_session()
        elif self.epoch != UNKNOWN_EPOCH and not await self._is_registered():
            self._clear_epoch()
            log.warning("broker registration lost", extra={"broker": self._node_id})
        if self.epoch == UNKNOWN_EPOCH:
            self._set_epoch(await self._register(self._session))

    async def _is_registered(self) -> bool:
        if await self._has_registration():
            return True
        await self._store.sync()  # The read may have been stale.
        return await self._has_registration()

    async def _has_registration(self) -> bool:
        held = (await self._store.registrations(self._key)).get(self._key)
        return held is not None and held.epoch == self.epoch

    def _set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._joined.set()
        log.info("broker registered", extra={"broker": self._node_id, "epoch": epoch})
        self._on_epoch_change(epoch)

    def _clear_epoch(self) -> None:
        if self.epoch != UNKNOWN_EPOCH:
            self.epoch = UNKNOWN_EPOCH
            self._joined.clear()
            self._on_epoch_change(UNKNOWN_EPOCH)

    # -- registering -----------------------------------------------------------------------------

    async def _register(self, session: Session) -> int:
        value = encode_registration(
            self._describe(), was_unclean_shutdown=self._was_unclean_shutdown()
        )
        while True:
            try:
                return await session.register(self._key, value)
            except AlreadyRegistered as error:
                if await self._is_stale(error.registration, session):
                    await self._store.deregister(self._key, error.registration.epoch)
                else:
                    await asyncio.sleep(_RETRY_S)

    async def _is_stale(self, held: Registration, session: Session) -> bool:
        """Whether the registration belongs to an incarnation that has ended. Raises IdInUse."""
        other = decode_registration(self._node_id, held).broker
        if held.session_id == session.id or other.endpoints == self._describe().endpoints:
            return True  # It is this broker's own: this process listens on that address now.
        for endpoint in other.endpoints:
            is_listening = await _is_listening(endpoint)
            if is_listening:
                raise IdInUse(
                    f"broker id {self._node_id} is in use: a broker with it listens on "
                    f"{endpoint.host}:{endpoint.port}"
                )
            if is_listening is None:
                return False
        return True


async def _is_listening(endpoint: Endpoint) -> bool | None:
    """Whether a process listens on the endpoint; None if that is unknown."""
    try:
        async with asyncio.timeout(_PROBE_S):
            connection = await PeerConnection.open(endpoint.host, endpoint.port)
    except OSError as error:  # includes TimeoutError
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
