"""The controller's writes: one decision at a time, and a completed write is in the image.

A decision runs inside `run_exclusively` and writes with `write`.
Invariant: a decision sees an image that includes all earlier writes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import (
    WRITE_BYTES_MAX,
    Applied,
    Conflict,
    MetadataStore,
    Operation,
    Unavailable,
    Unknown,
    values_of,
    write_bytes,
)
from suwi.model.errors import BrokerError, InvalidConfig, NotController, RequestTimedOut

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_CATCH_UP_S_MAX = 5.0


@dataclass(eq=False, repr=False)
class MetadataWriter:
    _store: MetadataStore
    _follower: MetadataFollower
    _controller_epoch: int
    _on_refusal: Callable[[], None] = lambda: None
    """Called when a write shows that this broker is no longer controller."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_closed: bool = False
    _is_uncertain: bool = False
    """Whether the store may have a write that the image does not have."""

    async def run_exclusively(self, decide: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a decision with its writes while no other decision runs.

        Cancelling the caller, as when a client disconnects, does not cancel the decision:
        otherwise the next one could see an image without its writes.
        """
        task = asyncio.ensure_future(self._run_locked(decide))  # owner: the caller
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_unexpected_error)
            raise

    def close(self) -> None:
        """This broker is not the active controller any more: decisions that wait for their turn,
        and further writes, raise NotController (hazard Z13)."""
        self._is_closed = True

    async def wait_idle(self) -> None:
        """Wait for the end of the decision that runs now: the next active controller may be this
        broker again, with the same epoch."""
        async with self._lock:
            pass

    def _check_open(self) -> None:
        if self._is_closed:
            raise NotController("this broker has resigned as controller")

    async def _run_locked(self, decide: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._lock:
            self._check_open()
            if self._is_uncertain:
                await self._catch_up()
            return await decide()

    async def _catch_up(self) -> None:
        """Wait for the image to catch up. A write replaces whole states, so a decision on a stale
        image would revert earlier changes."""
        try:
            await self._follower.synced(_CATCH_UP_S_MAX)
        except Unavailable as error:
            raise RequestTimedOut("the result of an earlier metadata write is unknown") from error
        self._is_uncertain = False

    async def write(self, operations: Sequence[Operation]) -> None:
        """Write in order, and atomically unless it is too large for the store.

        Raises NotController, RequestTimedOut.
        """
        for part in _split(operations):
            await self._write(part)

    async def _write(self, operations: Sequence[Operation]) -> None:
        self._check_open()
        if self._is_uncertain:
            raise RequestTimedOut("the result of the last metadata write is unknown")
        try:
            result = await self._store.write(operations, controller_epoch=self._controller_epoch)
        except Unavailable as error:
            raise RequestTimedOut(f"the metadata store is unavailable: {error}") from error
        match result:
            case Applied(sequence=sequence):
                await self._wait_for_image(sequence)
            case Conflict():
                self._on_refusal()
                raise NotController("the metadata was changed by another writer")
            case Unknown():
                self._is_uncertain = True
                await self._resolve_unknown(operations)

    async def _resolve_unknown(self, operations: Sequence[Operation]) -> None:
        """Find out the result of a write whose response was lost: it succeeded if and only if the
        store has its values."""
        try:
            await self._store.sync()
            snapshot = await self._store.read_all()
        except Unavailable as error:
            raise RequestTimedOut(f"the metadata store is unavailable: {error}") from error
        for key, value in values_of(operations).items():
            entry = snapshot.entries.get(key)
            if (entry.value if entry else None) != value:
                raise RequestTimedOut("the metadata store did not respond; nothing was changed")
        await self._wait_for_image(snapshot.sequence)

    async def _wait_for_image(self, sequence: int) -> None:
        """Wait until the image has the write; with a time limit, because the lock is held."""
        self._is_uncertain = True
        try:
            async with asyncio.timeout(_CATCH_UP_S_MAX):
                await self._follower.reached(sequence)
        except (TimeoutError, Unavailable) as error:
            raise RequestTimedOut("the metadata image does not have the write yet") from error
        self._is_uncertain = False


def _log_unexpected_error(task: asyncio.Task[Any]) -> None:
    """Log the error of a decision whose caller was cancelled, unless it is a refusal."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, BrokerError):
        log.error("unexpected error in a decision", exc_info=error)


def check_fits(operation: Operation) -> None:
    """Raises InvalidConfig if the operation is too large for the store."""
    if write_bytes([operation]) > WRITE_BYTES_MAX:
        raise InvalidConfig("the configuration is too large for the metadata store")


def _split(operations: Sequence[Operation]) -> list[list[Operation]]:
    writes: list[list[Operation]] = [[]]
    size_bytes = 0
    for operation in operations:
        added_bytes = write_bytes([operation])
        if writes[-1] and size_bytes + added_bytes > WRITE_BYTES_MAX:
            writes.append([])
            size_bytes = 0
        writes[-1].append(operation)
        size_bytes += added_bytes
    return writes
