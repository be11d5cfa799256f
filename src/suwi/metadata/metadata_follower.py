"""Follows the metadata store: builds a new `ClusterImage` after each change.

`start` loads the first image; from then on each new image is passed to all subscribers, one image
at a time. The sequence never decreases; after a gap in the changes the whole state is read again.
Invariants: `reached`, `until` and `synced` return only when all subscribers have applied the image;
once the follower has failed, they raise `Unavailable` instead of waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from suwi.env.tasks import STOP_BROKER, Tasks, cancel_and_wait, wait_for_event
from suwi.metadata.image import ClusterImage, ImageBuilder
from suwi.metadata.store import Gap, MetadataStore, Unavailable
from suwi.model.ids import NodeId

log = logging.getLogger(__name__)

BROKERS = "brokers/"
"""Prefix of the keys under which brokers register."""
_RETRY_S = 0.1
_CHECK_INTERVAL_S = 5.0
"""Notifications may be lost (hazard Z5), and looking for changes costs two small reads."""

ApplyImage: TypeAlias = Callable[[ClusterImage, ClusterImage], Awaitable[None] | None]
"""Applies the next image (second argument) after the last one (first argument). Long work is a
coroutine that yields to the event loop."""


class MetadataFollower:
    def __init__(self, store: MetadataStore, tasks: Tasks) -> None:
        self.image = ClusterImage()
        self._store = store
        self._tasks = tasks
        self._subscribers: list[ApplyImage] = []
        self._failure: Exception | None = None
        self._is_applying = False
        self._builder = ImageBuilder()
        self._controller: NodeId | None = None
        self._controller_epoch = -1
        self._changed = asyncio.Event()
        self._waiters: list[tuple[Callable[[ClusterImage], bool], asyncio.Future[None]]] = []
        self._syncs: list[asyncio.Future[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, apply_image: ApplyImage) -> None:
        """Call `apply_image` with each new image, after the earlier subscribers."""
        self._subscribers.append(apply_image)

    async def start(self) -> None:
        """Load the first image and follow from there. May be repeated after `Unavailable`."""
        if self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self._changed.set)
        await self._load()
        self._task = self._tasks.start(self._run, name="metadata follower", on_failure=STOP_BROKER)

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await cancel_and_wait(self._task)

    async def reached(self, sequence: int) -> None:
        """Wait until the image includes change number `sequence`."""
        await self.until(lambda image: image.sequence >= sequence)

    async def registered(self, node_id: NodeId, epoch: Callable[[], int]) -> None:
        """Wait until the image has the broker unfenced with its current epoch."""
        await self.until(
            lambda image: (
                node_id in image.unfenced_brokers
                and image.unfenced_brokers[node_id].epoch == epoch()
            )
        )

    async def synced(self, within_s: float | None = None) -> None:
        """Wait until the image includes everything that was written before the call.

        Raises `Unavailable` if the store is unavailable, or after `within_s`.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._store.sync()
                self._check()
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._syncs.append(waiter)
                self._changed.set()
                await waiter
        except TimeoutError as error:
            raise Unavailable(f"no response within {within_s} s") from error

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Wait until the condition holds for the image. Raises `Unavailable` after a failure."""
        if not self._is_applying and condition(self.image):
            return
        self._check()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, waiter))
        self._changed.set()
        await waiter

    def _check(self) -> None:
        if self._failure is not None:
            raise Unavailable(f"the metadata follower has failed: {self._failure!r}")

    async def _run(self) -> None:
        try:
            await self._follow()
        except Exception as error:
            self._failure = error
            waiting = [*self._syncs, *(waiter for _, waiter in self._waiters)]
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(Unavailable("the metadata follower has failed"))
            raise

    async def _follow(self) -> None:
        while True:
            await wait_for_event(self._changed, _CHECK_INTERVAL_S)
            self._changed.clear()
            requested = len(self._syncs)
            try:
                await self._catch_up()
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
                self._changed.set()
                continue
            synced, self._syncs = self._syncs[:requested], self._syncs[requested:]
            for waiter in synced:
                if not waiter.done():
                    waiter.set_result(None)

    async def _catch_up(self) -> None:
        await self._read_controller()
        changes = await self._store.changes_after(self.image.sequence)
        if isinstance(changes, Gap):
            await self._load()
            return
        image = self.image
        for change in changes:
            assert change.sequence > image.sequence
            image = await self._build(change.sequence, change.values)
        await self._publish(image)

    async def _load(self) -> None:
        await self._read_controller()
        snapshot = await self._store.read_all()
        if snapshot.sequence < self.image.sequence:
            log.warning("stale metadata snapshot ignored", extra={"sequence": snapshot.sequence})
            return
        entries = {key: entry.value for key, entry in snapshot.entries.items()}
        self._builder = ImageBuilder()
        await self._publish(await self._build(snapshot.sequence, entries))

    async def _build(self, sequence: int, values: Mapping[str, bytes | None]) -> ClusterImage:
        building = self._builder.applying(sequence, values)
        try:
            while True:
                next(building)
                await asyncio.sleep(0)
        except StopIteration as done:
            image: ClusterImage = done.value
            return image

    async def _read_controller(self) -> None:
        controller = await self._store.current_controller()
        self._controller = controller.node_id if controller else None
        if controller is not None:
            self._controller_epoch = controller.epoch

    async def _publish(self, image: ClusterImage) -> None:
        epoch = self._controller_epoch
        old, new = self.image, replace(image, controller=self._controller, controller_epoch=epoch)
        self.image = new
        if new != old:
            self._is_applying = True
            await self._apply(old, new)
            self._is_applying = False
        waiting, self._waiters = self._waiters, []
        for condition, waiter in waiting:
            if waiter.done():
                continue
            if condition(new):
                waiter.set_result(None)
            else:
                self._waiters.append((condition, waiter))

    async def _apply(self, old: ClusterImage, new: ClusterImage) -> None:
        """Pass the image to every subscriber, even if one of them fails. Raises the first error:
        a broker that has applied an image only in part must not continue."""
        failed: Exception | None = None
        for apply_image in self._subscribers:
            try:
                applying = apply_image(old, new)
                if applying is not None:
                    await applying
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
