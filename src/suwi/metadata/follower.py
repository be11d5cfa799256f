"""Following the store: one `ClusterImage` after another, in sequence.

`start` loads the first image; from then on every change leads to a new one, and `on_image` is
called with the old and the new. Never an older sequence: a gap means reading everything again.
"""

import asyncio
import logging
from collections.abc import Callable

from suwi.metadata.image import ClusterImage, ImageBuilder
from suwi.metadata.store import Gap, MetadataStore, Unavailable
from suwi.model.ids import NodeId

log = logging.getLogger(__name__)

BROKERS = "brokers/"
"""Under which brokers register."""
_RETRY_S = 0.1


class MetadataFollower:
    def __init__(
        self, store: MetadataStore, on_image: Callable[[ClusterImage, ClusterImage], None]
    ) -> None:
        self.image = ClusterImage()
        self._store = store
        self._on_image = on_image
        self._builder = ImageBuilder()
        self._controller: NodeId | None = None
        self._changed = asyncio.Event()
        self._waiters: list[tuple[Callable[[ClusterImage], bool], asyncio.Future[None]]] = []
        self._syncs: list[asyncio.Future[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the first image and follow from there."""
        self._unsubscribe = self._store.subscribe(self._changed.set)
        await self._load()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def reached(self, sequence: int) -> None:
        """Wait until this broker's image shows change number `sequence`."""
        await self.until(lambda image: image.sequence >= sequence)

    async def registered(self, node_id: NodeId, epoch: Callable[[], int]) -> None:
        """Wait until this broker's image shows a broker in the life that it lives by then."""
        await self.until(
            lambda image: node_id in image.brokers and image.brokers[node_id].epoch == epoch()
        )

    async def synced(self, within_s: float | None = None) -> None:
        """Wait until the image shows all that was written before the call.

        Raises `Unavailable` where the store cannot say it, or not in this time.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._store.sync()
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._syncs.append(waiter)
                self._changed.set()
                await waiter
        except TimeoutError as error:
            raise Unavailable(f"no answer within {within_s} s") from error

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        """Wait for an image of which that is true."""
        if condition(self.image):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, waiter))
        self._changed.set()
        await waiter

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            syncs, self._syncs = self._syncs, []
            try:
                await self._catch_up()
                for waiter in syncs:
                    if not waiter.done():
                        waiter.set_result(None)
            except Unavailable:
                self._syncs += syncs
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def _catch_up(self) -> None:
        await self._read_controller()
        changes = await self._store.changes_after(self.image.sequence)
        if isinstance(changes, Gap):
            await self._load()
            return
        image = self.image
        for change in changes:
            assert change.sequence > image.sequence
            image = self._builder.apply(change.sequence, change.values)
        self._publish(image)

    async def _load(self) -> None:
        await self._read_controller()
        snapshot = await self._store.read_all()
        if snapshot.sequence < self.image.sequence:
            log.warning("store shows older state: ignored", extra={"sequence": snapshot.sequence})
            return
        entries = {key: entry.value for key, entry in snapshot.entries.items()}
        self._publish(self._builder.load(snapshot.sequence, entries))

    async def _read_controller(self) -> None:
        controller = await self._store.current_controller()
        self._controller = controller.node_id if controller else None

    def _publish(self, image: ClusterImage) -> None:
        old, new = self.image, image.with_controller(self._controller)
        self.image = new
        if new != old:
            self._on_image(old, new)
        waiting, self._waiters = self._waiters, []
        for condition, waiter in waiting:
            if waiter.done():
                continue
            if condition(new):
                waiter.set_result(None)
            else:
                self._waiters.append((condition, waiter))
