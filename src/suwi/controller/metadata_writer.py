"""The controller's pen: one decision at a time, and a write that has returned is in the image.

Whoever decides enters at `alone`, and writes with `write`.
Invariant: a decision sees the image with everything that was written before it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from suwi.metadata.follower import MetadataFollower
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
_SURE_S = 5.0


class MetadataWriter:
    def __init__(
        self,
        store: MetadataStore,
        follower: MetadataFollower,
        controller_epoch: int,
        on_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_refusal` is told when a write shows that this is no controller any more."""
        self._store = store
        self._follower = follower
        self._controller_epoch = controller_epoch
        self._on_refusal = on_refusal
        self._turn = asyncio.Lock()
        self._is_unsure = False
        """Whether a write may have been made that the image does not show."""

    async def alone(self, decide: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Make a decision, with its writes, while no other is made.

        A client that goes away meanwhile cancels its wait, not the decision: the next one would
        else be made from an image that does not show it yet.
        """
        task = asyncio.ensure_future(self._in_turn(decide))  # owner: the caller
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_ended_unheard)
            raise

    async def _in_turn(self, decide: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._turn:
            if self._is_unsure:
                await self._make_sure()
            return await decide()

    async def _make_sure(self) -> None:
        """Writes carry whole states: one decided on an old image would take back what is there."""
        try:
            await self._follower.synced(_SURE_S)
        except Unavailable as error:
            raise RequestTimedOut("the metadata store does not say what was written") from error
        self._is_unsure = False

    async def write(self, operations: Sequence[Operation]) -> None:
        """Write in order, in one piece where it is not too large for the store.

        Raises NotController, RequestTimedOut.
        """
        for part in _split(operations):
            await self._write(part)

    async def _write(self, operations: Sequence[Operation]) -> None:
        if self._is_unsure:
            raise RequestTimedOut("it is not known yet what the last write has changed")
        try:
            result = await self._store.write(operations, controller_epoch=self._controller_epoch)
        except Unavailable as error:
            raise RequestTimedOut(f"the metadata store takes no writes: {error}") from error
        match result:
            case Applied(sequence=sequence):
                await self._see(sequence)
            case Conflict():
                self._on_refusal()
                raise NotController("the metadata changed under the controller")
            case Unknown():
                self._is_unsure = True
                await self._find_out(operations)

    async def _find_out(self, operations: Sequence[Operation]) -> None:
        """The answer of a write was lost: it was made exactly if its values are there."""
        try:
            await self._store.sync()
            snapshot = await self._store.read_all()
        except Unavailable as error:
            raise RequestTimedOut(f"the metadata store does not answer: {error}") from error
        for key, value in values_of(operations).items():
            entry = snapshot.entries.get(key)
            if (entry.value if entry else None) != value:
                raise RequestTimedOut("the metadata store did not answer; nothing was changed")
        await self._see(snapshot.sequence)

    async def _see(self, sequence: int) -> None:
        """Wait for the image to show what was written; not for ever, with the turn held."""
        self._is_unsure = True
        try:
            async with asyncio.timeout(_SURE_S):
                await self._follower.reached(sequence)
        except (TimeoutError, Unavailable) as error:
            raise RequestTimedOut("the image does not show what was written") from error
        self._is_unsure = False


def _ended_unheard(task: asyncio.Task[Any]) -> None:
    """The client is gone: a refusal concerns nobody any more, an error of ours still does."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, BrokerError):
        log.error("unexpected error in a decision", exc_info=error)


def check_fits(operation: Operation) -> None:
    """Raises InvalidConfig where a value is larger than a store takes at once."""
    if write_bytes([operation]) > WRITE_BYTES_MAX:
        raise InvalidConfig("the configuration is larger than the metadata store takes")


def _split(operations: Sequence[Operation]) -> list[list[Operation]]:
    writes: list[list[Operation]] = [[]]
    for operation in operations:
        if writes[-1] and write_bytes([*writes[-1], operation]) > WRITE_BYTES_MAX:
            writes.append([])
        writes[-1].append(operation)
    return writes
