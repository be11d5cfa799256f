"""The broker's session with the metadata store, and its registration.

`join` registers the broker and keeps it registered: in a new session after the session was lost,
and again in the same session after the registration was removed. `on_epoch_change` is called with
each new broker epoch, and with UNKNOWN_EPOCH as soon as the registration is known to have ended;
from then on the broker must not lead any partition.
Invariant: the epoch reported last belongs to a registration that is not known to have ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from suwi.controller.registration import (
    IdInUse,
    OwnRegistration,
    address_of,
    decode_origin,
    decode_registration,
    encode_registration,
    in_use,
    refuse_if_answered,
)
from suwi.env.problems import because
from suwi.env.tasks import RESTART, STOP_BROKER, Tasks, cancel_and_wait, wait_for_event
from suwi.metadata.metadata_follower import BROKERS
from suwi.metadata.store import (
    AlreadyRegistered,
    Closed,
    MetadataStore,
    Registration,
    Session,
    SessionLost,
    StoreRolledBack,
    Unavailable,
    until_available,
)
from suwi.model.ids import NodeId
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.peers import Connect

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 1.0
"""Notifications of the store may be late, and a check is cheap."""
_RETRY_S = 0.2
_RESIGN_S_MAX = 2.0
_TIMEOUTS_WAITED = 2
"""A registration that outlives this many timeouts of its session has a session that is alive."""


@dataclass(eq=False, repr=False)
class BrokerLifecycle:
    _node_id: NodeId
    _store: MetadataStore
    _describe: Callable[[], OwnRegistration]
    _connect: Connect
    _on_epoch_change: Callable[[int], Awaitable[None]]
    _tasks: Tasks
    epoch: int = UNKNOWN_EPOCH
    _key: str = field(init=False)
    _session: Session | None = None
    _joined: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _copy_task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._key = f"{BROKERS}{self._node_id}"

    async def join(self) -> int:
        """Register the broker; returns the broker epoch. Waits for the store. Raises IdInUse,
        ForeignZnodes."""
        copy = self._store.readable_copy
        if copy is not None:
            await until_available(copy.prepare)
        while self.epoch == UNKNOWN_EPOCH:
            with contextlib.suppress(SessionLost):
                await until_available(self._check_registration)
        self._task = self._tasks.start(
            self._keep_registered, name="broker registration", on_failure=STOP_BROKER
        )
        if copy is not None:
            self._copy_task = self._tasks.start(
                partial(copy.keep, self._key), name="copy at Kafka's znodes", on_failure=RESTART
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
            await self._clear_epoch()

    async def resign(self) -> None:
        """Resign as controller, if this session is the controller's."""
        if self._session is not None and not self._session.lost.is_set():
            with contextlib.suppress(Unavailable, StoreRolledBack, TimeoutError):
                async with asyncio.timeout(_RESIGN_S_MAX):
                    await self._session.resign()

    async def stop(self) -> None:
        """Close the session, which removes the registration."""
        await cancel_and_wait(self._task)
        await cancel_and_wait(self._copy_task)
        if self._session is not None:
            with contextlib.suppress(Unavailable):
                await self._session.close()

    # -- staying registered ----------------------------------------------------------------------

    async def _keep_registered(self) -> None:
        changed = asyncio.Event()
        unsubscribe = self._store.subscribe(changed.set)
        try:
            while True:
                await wait_for_event(changed, _CHECK_INTERVAL_S)
                changed.clear()
                try:
                    await self._check_registration()
                except Closed:
                    return
                except Unavailable:
                    await asyncio.sleep(_RETRY_S)
                    changed.set()
                except IdInUse as error:
                    log.error("broker not registered", extra=because(error, broker=self._node_id))
                except SessionLost:
                    changed.set()
        finally:
            unsubscribe()

    async def _check_registration(self) -> None:
        if self._session is None:
            self._session = await self._store.open_session()
        elif self._session.lost.is_set():
            await self._clear_epoch()
            log.warning("metadata session lost", extra={"broker": self._node_id})
            self._session = await self._store.open_session()
        elif self.epoch != UNKNOWN_EPOCH and not await self._is_registered():
            await self._clear_epoch()
            log.warning("broker registration lost", extra={"broker": self._node_id})
        if self.epoch == UNKNOWN_EPOCH:
            await self._set_epoch(await self._register(self._session))

    async def _is_registered(self) -> bool:
        if await self._has_registration():
            return True
        await self._store.sync()  # The read may have been stale.
        return await self._has_registration()

    async def _has_registration(self) -> bool:
        held = (await self._store.registrations(self._key)).get(self._key)
        return held is not None and held.epoch == self.epoch

    async def _set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._joined.set()
        log.info("broker registered", extra={"broker": self._node_id, "epoch": epoch})
        await self._on_epoch_change(epoch)

    async def _clear_epoch(self) -> None:
        if self.epoch != UNKNOWN_EPOCH:
            self.epoch = UNKNOWN_EPOCH
            self._joined.clear()
            await self._on_epoch_change(UNKNOWN_EPOCH)

    # -- registering -----------------------------------------------------------------------------

    async def _register(self, session: Session) -> int:
        """Raises IdInUse."""
        loop = asyncio.get_running_loop()
        value = encode_registration(self._own(session))
        first: Registration | None = None
        deadline_s = 0.0
        while True:
            try:
                return await session.register(self._key, value)
            except AlreadyRegistered as error:
                held = error.registration
            if await self._is_own(held, session):
                if held.session_id != session.id:
                    await self._depose_earlier()
                await self._store.deregister(self._key, held.epoch)
                continue
            if first is None or held.epoch != first.epoch:
                first = held
                deadline_s = loop.time() + self._session_limit_s(held, session)
                log.warning(
                    "waiting for the end of an earlier registration",
                    extra={"broker": self._node_id, "epoch": held.epoch},
                )
            await self._refuse_if_in_use(held, is_overdue=loop.time() > deadline_s)
            await asyncio.sleep(_RETRY_S)

    def _own(self, session: Session) -> OwnRegistration:
        """ZooKeeper may have granted another session timeout than the configured one."""
        own = self._describe()
        if session.timeout_s is None:
            return own
        origin = own.origin._replace(session_timeout_ms=int(session.timeout_s * 1000))
        return own._replace(origin=origin)

    async def _is_own(self, held: Registration, session: Session) -> bool:
        """Whether the registration certainly is an earlier one of this broker. Raises IdInUse."""
        own, origin = self._describe().origin, decode_origin(held)
        if held.session_id == session.id or own.is_same_process(origin):
            return True
        if not own.is_same(origin):
            return False
        # A process that has ended, unless somebody has copied the data directory.
        other = decode_registration(self._node_id, held).broker
        await refuse_if_answered(other, own, self._connect)
        return True

    async def _depose_earlier(self) -> None:
        """If the earlier process was the controller, there would be none until its session ends:
        the other brokers may have been started again, too, and have never seen it answer."""
        controller = await self._store.current_controller()
        if controller is not None and controller.node_id == self._node_id:
            await self._store.depose(controller.epoch)

    async def _refuse_if_in_use(self, held: Registration, *, is_overdue: bool) -> None:
        """Raises IdInUse. Otherwise the registration's broker has ended or is unreachable: wait
        for the end of its session."""
        other, origin = decode_registration(self._node_id, held).broker, decode_origin(held)
        await refuse_if_answered(other, self._describe().origin, self._connect)
        if is_overdue:
            how = f"registered with the address {address_of(other)} keeps its session alive"
            raise IdInUse(in_use(other, origin.directory_ids, how))

    def _session_limit_s(self, held: Registration, session: Session) -> float:
        timeouts_ms = (decode_origin(held), self._own(session).origin)
        return _TIMEOUTS_WAITED * max(each.session_timeout_ms for each in timeouts_ms) / 1000
